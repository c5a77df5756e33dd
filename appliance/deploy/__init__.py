"""One deployment on this machine: observe what runs, reconcile it with a plan, execute the difference."""
