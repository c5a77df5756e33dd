"""The entry point of the engine process."""

import sys

from appliance.engine.process import main

if __name__ == "__main__":
    sys.exit(main())
