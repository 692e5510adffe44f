"""A whole pool simulated on the core alone, with random queues: what must hold for every plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.fairness import charged
from services.scheduler.core.plans import OptimPlan, PassPlan, Plan, SinglePlan
from services.scheduler.core.select import Policy, select
from services.scheduler.core.view import Clock, ModelQueue, Op, QueuedCommand, ReadyView

OPS = [Op.FORWARD, Op.FORWARD_BACKWARD, Op.FORWARD_BACKWARD, Op.OPTIM_STEP, Op.SAVE_WEIGHTS, Op.LOAD_WEIGHTS]


@dataclass
class Pool:
    """Executes plans as the store and trainer would: a unit settles before the next is chosen."""

    queues: list[ModelQueue]
    policy: Policy
    clock: Clock = field(default_factory=Clock)
    settled: list[QueuedCommand] = field(default_factory=list)
    datums: Counter[tuple[str, int]] = field(default_factory=Counter)
    plans: list[Plan] = field(default_factory=list)

    def turn(self) -> Plan | None:
        for number, queue in enumerate(self.queues):
            self._settle_rejected(number, queue)
        plan = select(ReadyView(tuple(self.queues), clock=self.clock), self.policy)
        if plan is None:
            return None
        after = charged(self.clock, plan, self.policy.weights)
        self.clock = Clock(after.virtual, {**self.clock.finish, **after.finish})
        self.plans.append(plan)
        if isinstance(plan, PassPlan):
            for item in plan.items:
                self._report(item.queue.model_id, item.command.key, item.first, item.count)
        elif isinstance(plan, OptimPlan):
            for step in plan.steps:
                self._finish(step.queue.model_id, step.command.key)
        elif isinstance(plan, SinglePlan):
            self._finish(plan.step.queue.model_id, plan.step.command.key)
        return plan

    def _settle_rejected(self, number: int, queue: ModelQueue) -> None:
        commands = list(queue.commands)
        while commands and commands[0].rejected:
            self.settled.append(commands.pop(0))
        self.queues[number] = replace(queue, commands=tuple(commands))

    def _report(self, model: str, key: str, first: int, count: int) -> None:
        for index in range(first, first + count):
            self.datums[key, index] += 1
        index = self._index(model)
        commands = [replace(c, issued=c.issued + count) if c.key == key else c for c in self.queues[index].commands]
        self.queues[index] = replace(self.queues[index], commands=tuple(commands))
        if next(c for c in commands if c.key == key).issued == len(next(c for c in commands if c.key == key).costs):
            self._finish(model, key)

    def _finish(self, model: str, key: str) -> None:
        index = self._index(model)
        self.settled.append(next(c for c in self.queues[index].commands if c.key == key))
        left = tuple(c for c in self.queues[index].commands if c.key != key)
        self.queues[index] = replace(self.queues[index], commands=left)

    def _index(self, model: str) -> int:
        return next(i for i, queue in enumerate(self.queues) if queue.model_id == model)


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    models = draw(st.integers(1, 5))
    total = draw(st.integers(1, 24))
    owners = draw(st.lists(st.integers(0, models - 1), min_size=total, max_size=total))
    arrivals = draw(st.permutations(range(1, total + 1)))
    commands: dict[int, list[QueuedCommand]] = {model: [] for model in range(models)}
    for owner, arrival in zip(owners, arrivals, strict=True):
        op = draw(st.sampled_from(OPS))
        costs = tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))) if op.is_batch else ()
        pack = f"{op}-{draw(st.integers(0, 1))}" if op.is_batch else ""
        rejected = draw(st.integers(0, 9)) == 0
        seq = len(commands[owner]) + 1
        commands[owner].append(QueuedCommand(f"{owner}:{seq}", op, seq, arrival, pack, costs, 0, rejected))
    queues = [
        ModelQueue(str(model), f"tenant{draw(st.integers(0, 2))}", model, 1, tuple(commands[model]))
        for model in range(models)
    ]
    return Pool(queues, Policy(draw(st.integers(1, 30)), draw(st.booleans())))


def run_dry(pool: Pool) -> None:
    while pool.turn() is not None:
        assert len(pool.plans) < 2000, "the pool makes no progress"


@settings(max_examples=150, deadline=None)
@given(pools())
def test_everything_settles_and_every_datum_runs_once_ORD_08_LAYER_02(pool: Pool) -> None:
    wanted = {(c.key, i) for q in pool.queues for c in q.commands if not c.rejected for i in range(len(c.costs))}
    commands = {c.key for q in pool.queues for c in q.commands}
    run_dry(pool)
    assert {c.key for c in pool.settled} == commands
    assert pool.datums == Counter(wanted)


@settings(max_examples=150, deadline=None)
@given(pools())
def test_barriers_and_rejected_commands_keep_their_place_ORD_01_ORD_05_ORD_06(pool: Pool) -> None:
    run_dry(pool)
    by_model: dict[str, list[QueuedCommand]] = {}
    for command in pool.settled:
        by_model.setdefault(command.key.split(":")[0], []).append(command)
    for order in by_model.values():
        for place, command in enumerate(order):
            if command.rejected or not command.op.is_batch:
                assert all(c.seq < command.seq for c in order[:place])
                assert all(c.seq > command.seq for c in order[place + 1 :])


@settings(max_examples=150, deadline=None)
@given(pools())
def test_passes_hold_one_pack_key_the_budget_and_slot_order_PACK_02_PACK_03_PACK_08(pool: Pool) -> None:
    run_dry(pool)
    for plan in pool.plans:
        if isinstance(plan, PassPlan):
            assert {item.command.pack_key for item in plan.items} == {plan.pack_key}
            datums = sum(item.count for item in plan.items)
            assert datums == 1 or sum(item.cost for item in plan.items) <= pool.policy.budget
            slots = [item.queue.slot for item in plan.items]
            assert slots == sorted(slots, key=lambda slot: slot or 0)
        if isinstance(plan, OptimPlan):
            assert len({step.queue.slot for step in plan.steps}) == len(plan.steps)


@settings(max_examples=100, deadline=None)
@given(pools())
def test_without_fairness_the_seed_is_the_oldest_ready_work_PACK_01(pool: Pool) -> None:
    pool.policy = replace(pool.policy, fair=False)
    while True:
        for number, queue in enumerate(pool.queues):
            pool._settle_rejected(number, queue)
        ready = [c.arrival for q in pool.queues for c in q.run() if c.waiting]
        ready += [head.arrival for q in pool.queues if (head := q.barrier()) is not None]
        plan = pool.turn()
        if plan is None:
            assert not ready
            return
        if isinstance(plan, PassPlan):
            taken = [item.command.arrival for item in plan.items]
        elif isinstance(plan, OptimPlan):
            taken = [step.command.arrival for step in plan.steps]
        else:
            assert isinstance(plan, SinglePlan)
            taken = [plan.step.command.arrival]
        assert min(taken) == min(ready)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(12, 40), st.integers(1, 12))
def test_a_newcomer_waits_for_two_units_at_most_PACK_09(before: int, cost: int, budget: int, own: int) -> None:
    flood = QueuedCommand("flood", Op.FORWARD_BACKWARD, 1, 1, "x", (cost,) * 3000)
    pool = Pool([ModelQueue("0", "a", 0, 1, (flood,)), ModelQueue("1", "b", 1, 1, ())], Policy(budget))
    for _ in range(before):
        pool.turn()
    lone = QueuedCommand("lone", Op.FORWARD_BACKWARD, 1, 2, "y", (own,))
    pool.queues[1] = replace(pool.queues[1], commands=(lone,))
    pool.turn()
    pool.turn()
    assert lone.key in [command.key for command in pool.settled]
