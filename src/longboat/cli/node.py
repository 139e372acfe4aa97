import typer

node_app = typer.Typer()


@node_app.command()
def stub() -> None: ...
