"""`python -m mlc_deploy.cli`"""

import sys

from . import main

sys.exit(main())
