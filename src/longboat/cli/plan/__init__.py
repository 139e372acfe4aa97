"""Commands that plan without starting anything: plan, fit and cost."""
