"""What type checkers know of the names that a star imports."""

from weakincentives import *  # noqa: F403

session: Session = Session()  # noqa: F405
