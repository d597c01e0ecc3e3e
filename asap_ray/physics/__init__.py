"""What a plan costs: pure functions from columns of plans to seconds and bytes."""
