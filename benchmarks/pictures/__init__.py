"""Pictures of real iterations."""
