"""How a network grows far from everything."""
from farfield.growth import rules as _rules
from farfield.growth._analysis import analyse_growth
from farfield.growth._horizon import horizon, Horizon
