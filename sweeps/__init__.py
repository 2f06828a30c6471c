"""Plans cells, runs them, keeps run directories and turns them into predictions."""
