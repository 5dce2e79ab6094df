"""Finds the inbox of a command: APP, `--app` or `app` in oncehook.toml; otherwise the configuration alone."""

import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oncehook.config.configuration import Configuration, load
from oncehook.model.errors import ConfigurationError

if TYPE_CHECKING:
    from oncehook.inbox import Inbox
    from oncehook.runtime import Runtime

_project: "ContextVar[Inbox | None]" = ContextVar("oncehook_project", default=None)
"""The inbox of the project that runs the command line, such as a Django project."""

_program: ContextVar[Sequence[str]] = ContextVar("oncehook_program", default=(sys.executable, "-m", "oncehook"))
"""The command that starts this command line in another process."""

META_KEY = "oncehook.app"
CONFIG_VARIABLE = "ONCEHOOK_CONFIG"


def _remember(context: click.Context, parameter: click.Parameter, app: str | None) -> None:
    if app is not None:
        context.meta[META_KEY] = app


app_option = click.option(
    "--app",
    "app_option",
    metavar="MODULE:INBOX",
    expose_value=False,
    callback=_remember,
    help='Inbox to load, such as hooks:inbox; "" for none.  [default: app in oncehook.toml]',
)


def app_name(configuration: Configuration, argument: str | None = None) -> str | None:
    """The name of the app: the argument APP, `--app`, or `app` of the configuration. None without an app."""
    context = click.get_current_context(silent=True)
    option: str | None = None if context is None else context.meta.get(META_KEY)
    if argument is not None and option is not None and argument != option:
        raise click.UsageError(f"APP is {argument} but --app is {option}: use only one of them")
    name = next((name for name in (argument, option) if name is not None), configuration.settings.app)
    return name or None


def configured(config: str | None, argument: str | None = None) -> "tuple[Configuration, Inbox | None]":
    """The configuration, with the database and sources of the app, and the app's inbox. No inbox without an app."""
    inbox = _project.get()
    if inbox is None:
        configuration = load(config)
        name = app_name(configuration, argument)
        if name is None:
            return configuration, None
        with _config_variable(config):
            inbox = load_inbox(name)
    elif config is not None or app_name(inbox._runtime.configuration, argument) is not None:
        raise ConfigurationError("the project's settings configure the inbox: leave out APP, --app and --config")
    runtime = inbox._runtime
    sources = {source.name: source.settings for source in runtime.sources.values()}
    return replace(runtime.configuration, settings=runtime.settings, sources=sources), inbox


@contextmanager
def project_inbox(inbox: "Inbox", program: Sequence[str]) -> Iterator[None]:
    """Use this inbox for the commands that run in the block. `program` starts them in another process."""
    token, program_token = _project.set(inbox), _program.set(program)
    try:
        yield
    finally:
        _project.reset(token)
        _program.reset(program_token)


def program_command() -> Sequence[str]:
    """The command that starts this command line in another process, with the same project."""
    return _program.get()


@contextmanager
def _config_variable(config: str | None) -> Iterator[None]:
    """Point ONCEHOOK_CONFIG to the file of `--config`, so that an `Inbox()` in the app's module reads it."""
    before = os.environ.get(CONFIG_VARIABLE)
    if config is not None:
        os.environ[CONFIG_VARIABLE] = config
    try:
        yield
    finally:
        if config is not None:
            os.environ.pop(CONFIG_VARIABLE)
        if before is not None:
            os.environ[CONFIG_VARIABLE] = before


def configured_inbox(config: str | None, argument: str | None = None) -> "Inbox":
    """The app's inbox. Without an app, an inbox with the sources of the configuration."""
    from oncehook.inbox import Inbox

    configuration, inbox = configured(config, argument)
    return Inbox(config=configuration) if inbox is None else inbox


def unused_settings(runtime: "Runtime") -> str | None:
    """A sentence about sources and consumers of the file that the app's inbox does not have, or None."""
    configuration, consumers = runtime.configuration, runtime.consumers.settings
    tables = [f"[sources.{name}]" for name in configuration.sources if name not in runtime.sources]
    tables += [f"[consumers.{name}]" for name in configuration.consumers if name not in consumers]
    if not tables:
        return None
    return (
        f"{configuration.file} has {', '.join(tables)}, which the app does not use: an inbox that the code gives its "
        f"database has only the sources and consumers of the code. Use Inbox() and set `database` in the file, or pass "
        f'config="{configuration.file}" to Inbox'
    )


def load_inbox(app: str) -> "Inbox":
    """Import the inbox `module:attribute`, with the current directory on the path."""
    from oncehook.inbox import Inbox

    module_name, _, attribute = app.partition(":")
    if not module_name or not attribute:
        raise ConfigurationError(f"the app {app} is not of the form module:inbox, such as hooks:inbox")
    module = _import(app, module_name)
    try:
        inbox: Any = getattr(module, attribute)
    except AttributeError:
        names = [name for name, value in vars(module).items() if isinstance(value, Inbox)]
        hint = f": did you mean {module_name}:{names[0]}?" if names else ", and no Inbox under any other name"
        raise ConfigurationError(f"{module_name} has no {attribute}{hint}") from None
    if not isinstance(inbox, Inbox):
        raise ConfigurationError(f"{app} is a {type(inbox).__name__}, not an Inbox")
    return inbox


def _import(app: str, name: str) -> Any:
    folder = os.getcwd()  # noqa: PTH109  # sys.path holds strings
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ConfigurationError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(
                f"cannot import the app {app}: there is no module {error.name} in {folder}"
            ) from None
        summary = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
        raise ConfigurationError(
            f"cannot import the app {app}: {summary} ({_location(error)}). "
            f'`python -c "import {name}"` shows the traceback. If the command needs no handlers, add --app ""'
        ) from None


def _location(error: Exception) -> str:
    """FILE:LINE of the innermost frame in the user's code, not in an installed package."""
    if isinstance(error, SyntaxError):
        return f"{_relative(error.filename or '?')}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    installed = (str(Path(__file__).parents[1]), str(Path(os.__file__).parent), "site-packages")
    own = [frame for frame in frames if not any(part in frame.filename for part in installed)]
    frame = (own or frames)[-1]
    return f"{_relative(frame.filename)}:{frame.lineno}"


def _relative(file: str) -> str:
    """The path relative to the current directory if it is inside it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
