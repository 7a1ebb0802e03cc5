"""`python -m mlc_deploy.cli`"""

from . import main

main()
