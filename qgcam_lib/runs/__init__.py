"""From a paper notebook and its parameters to a run: checked, recorded, resumed, gathered."""
