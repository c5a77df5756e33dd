"""Files for other supervisors, made of a spec and its plan: systemd, compose, Kubernetes, KServe."""
