"""The engine process's entry."""

import sys

from appliance.engine.process import main

if __name__ == "__main__":
    sys.exit(main())
