"""What every paper shares: published tables, ours beside them, claims, figures."""
