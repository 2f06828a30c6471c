"""Figures and the HTML report; reads run directories, never measures."""
