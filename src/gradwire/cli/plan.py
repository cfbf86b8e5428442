"""`gradwire plan`: prints and draws the trees that a planner makes for a network."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.tree import Tree as Branch

from gradwire.cli.networks import HELP, network
from gradwire.cli.output import write
from gradwire.plan.job import DEFAULT_CHUNK, ReductionJob
from gradwire.plan.model.draw import draw
from gradwire.plan.model.matrix_io import NamedMatrix
from gradwire.plan.planners.registry import DEFAULT, PLANNERS, make_plan
from gradwire.plan.trees import children_of
from gradwire.simulate.models import gradient_bytes
from gradwire.types import Plan, Tree
from gradwire.units import Bytes, Seconds, parse_bytes


@click.command("plan")
@click.option("--net", required=True, help=HELP)
@click.option("--latency", help="Skyplane's latency CSV, for a throughput CSV.")
@click.option("--model", default="resnet50", show_default=True, help="alexnet, resnet18, resnet50, vgg16, or a size.")
@click.option("--planner", default=DEFAULT, show_default=True, type=click.Choice(list(PLANNERS)))
@click.option(
    "--chunk",
    default=str(DEFAULT_CHUNK),
    show_default=True,
    help="Bytes that are sent, summed and forwarded as one piece.",
)
@click.option("--svg", type=click.Path(dir_okay=False), help="Draw the plan into this file.")
@click.option("--trees", default=3, show_default=True, help="Number of trees to print, largest shares first.")
@click.option("--json", "as_json", is_flag=True, help="The whole plan as JSON on stdout.")
def plan_command(  # noqa: PLR0913, PLR0917 - click hands over every option as an argument
    net: str, latency: str | None, model: str, planner: str, chunk: str, svg: str | None, trees: int, as_json: bool
) -> None:
    """Plan aggregation trees for a network and print the reason."""
    named = network(net, latency)
    job = ReductionJob(gradient_bytes(model), chunk=parse_bytes(chunk, "chunk"))
    plan = make_plan(named.matrix, job, planner)
    if svg:
        write(Path(svg), draw(named.matrix, plan, named.sites), "plan --svg")
    if as_json:
        click.echo(json.dumps(as_data(plan)))
        return
    _print(Console(), named, plan, job, trees)
    if svg:
        click.echo(f"wrote {svg}", err=True)


def as_data(plan: Plan) -> dict[str, object]:
    """A plan as JSON data: pairs become "a->b"."""
    data = asdict(plan)
    for field in ("auxiliary", "routes"):
        data[field] = {f"{a}->{b}": value for (a, b), value in data[field].items()}
    return data


def _print(console: Console, named: NamedMatrix, plan: Plan, job: ReductionJob, most: int) -> None:
    names = dict(zip(named.matrix.members, named.sites, strict=True))
    console.print(f"[bold]{named.name}[/bold], {named.matrix.size} members, {Bytes(job.nbytes)}: {plan.planner}")
    console.print(f"predicted: {Seconds(plan.predicted)}; {plan.reason}", highlight=False)
    shown = sorted(plan.trees, key=lambda tree: -tree.share)[:most]
    for tree in shown:
        console.print(_branch(tree, names))
    if len(plan.trees) > len(shown):
        console.print(f"... and {len(plan.trees) - len(shown)} more trees")
    for what, routes in (("relayed", plan.routes), ("with side routes", plan.auxiliary)):
        if routes:
            console.print(f"{len(routes)} edges {what}", highlight=False)


def _branch(tree: Tree, names: dict[int, str]) -> Branch:
    title = f"{tree.share:.1%} summed at {names[tree.root]}" + (" (results use other edges)" if tree.sources else "")
    top, children = Branch(title), children_of(tree.parents)
    todo = [(top, tree.root)]
    while todo:
        branch, member = todo.pop()
        todo += [(branch.add(names[child]), child) for child in children[member]]
    return top
