"""Bottle, below the dispatcher of the inbox: `Bottle.mount` would start it only with a delivery."""

from bottle import Bottle

from tests.integrations.frameworks.shop import inbox

shop = Bottle()


shop.route("/", callback=lambda: "the shop bottle_app")
app = inbox.wsgi.mount(shop)
