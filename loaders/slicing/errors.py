"""What can stand in the way of a plan. Each text says where, expected, found, and what to do."""

from __future__ import annotations


class PlanError(ValueError):
    """These degrees don't divide this model, or the model can't be planned at all."""


class IndivisibleError(PlanError):
    """A size that a degree doesn't divide; the text has both numbers."""


class ConfigError(PlanError):
    """config.json lacks what a rule needs, or holds it in a form that can't be used."""


class RulesError(PlanError):
    """A table of rules that can't be used, or tensors that no rule of it names."""
