"""The Explore page's script; what it shows is `app.explore`."""

from app.explore import show

show()
