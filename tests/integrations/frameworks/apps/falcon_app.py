"""Falcon, below the dispatcher of the inbox."""

import falcon

from tests.integrations.frameworks.shop import inbox


class Home:
    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        response.text = "the shop falcon_app"


shop = falcon.App()
shop.add_route("/", Home())
app = inbox.wsgi.mount(shop)
