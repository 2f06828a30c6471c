"""Acceptance measured in one teacher-forced pass, and rollouts from rejected drafts."""
