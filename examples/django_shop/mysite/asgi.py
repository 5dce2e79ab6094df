"""The project as an ASGI app: `uvicorn mysite.asgi:application`."""

import os

from django.core.asgi import get_asgi_application

from oncehook.integrations.django.asgi import with_lifespan

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
application = with_lifespan(get_asgi_application())
