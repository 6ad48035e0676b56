"""What clusters, people and other programs do to both sides."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from confluent_kafka import KafkaError, KafkaException

from .judge import Judge
from .memory import Copy
from .operations import COPY_CONFIGS, TOPIC_CONFIGS, Op
from .world import Side


class OnClusters(Judge):
    """Operations return what they did, or "-" where they do not fit."""

    def _op_produce(self, op: Op) -> str:
        if (found := self._source_log(op)) is None:
            return "-"
        name, partition, _ = found
        if op.kind == "old" and self._kind(op.topic) != "compact":
            self._cause(op.topic, "old")
            if self._kind(op.topic) != "forever":
                self._expires(op.topic)
        chance = Random(f"{self._schedule.seed} {self._place}")
        value = f"s{self._schedule.seed}.{self._place}"
        delivered = self._world.source.produce(name, partition, op.amount, op.kind, chance, value)
        # before a read: what retention deletes at once is never seen in the source's log
        self._history.setdefault((name, partition), {}).update(delivered)
        return "done"

    def _op_alike(self, op: Op) -> str:
        return self._op_produce(replace(op, amount=max(3, op.amount // 3 * 3), kind="alike"))

    def _op_commit(self, op: Op) -> str:
        positions: dict[tuple[str, int], int] = {}
        for name, topic in self._source.items():
            for partition, log in topic.partitions.items():
                read = self._read.get((topic.id, partition), 0)
                offset = log.start + (log.stable - log.start) * op.amount // 100
                positions[name, partition] = offset = max(offset, min(read, log.stable))
                self._read[topic.id, partition] = max(offset, read)
        if not positions:
            return "-"
        self._world.source.commit(self._group, positions)
        return f"at {', '.join(map(str, positions.values()))}"

    def _op_expire_source(self, op: Op) -> str:
        if (found := self._source_log(op)) is None or self._kind(op.topic) == "compact":
            return "-"
        name, partition, log = found
        before = log.start + (log.stable - log.start) * op.amount // 100
        if before <= log.start:
            return "-"
        self._cause(op.topic, "source expired")
        self._world.source.expire(name, partition, before)
        return f"{name}-{partition} before {before} of {log.end}"

    def _op_cut_source(self, op: Op) -> str:
        if (found := self._source_log(op)) is None:
            return "-"
        name, partition, log = found
        below = self._world.cut_below("source", name, partition, log.start, op.amount)
        if below >= log.end:
            return "-"
        self._cause(op.topic, "source cut")
        self._world.crash("source", name, partition, below)
        self._crashed()
        return f"{name}-{partition} from {log.end} to {below}"

    def _op_recreate(self, op: Op) -> str:
        name, kind = self._names[op.topic], op.kind or "default"
        self._cause(op.topic, "source recreated")
        self._former_settings[self._place, op.topic] = TOPIC_CONFIGS[self._kind(op.topic)]
        self._world.source.delete(name)
        self._forget_damage("source", name)
        self._create(name, 1 + op.partition, kind)
        self._source_causes[name] -= {"old", "source cut", "source expired"}
        self._forget_source(op.topic)
        if kind == "short":
            self._source_causes[name].add("source expired")
        return f"as {kind}, {1 + op.partition} partitions"

    def _op_delete_source(self, op: Op) -> str:
        if op.topic == 0:  # the one that keeps the flow alive
            return "-"
        self._keep(op.topic)
        self._cause(op.topic, "source deleted")
        self._cause(op.topic, "source recreated")
        self._world.source.delete(self._names[op.topic])
        self._forget_source(op.topic)
        return "deleted"

    def _next_name(self) -> str:
        return f"{self._tag}.{'abc'[len(self._names)]}" if len(self._names) < len("abc") else ""

    def _op_appear(self, op: Op) -> str:
        """A topic more, with records."""
        if not (name := self._next_name()):
            return "-"
        self._names.append(name)
        self._source_causes[name] = set()
        self._create(name, 1, "forever")
        self._world.source.produce(name, 0, 1 + op.amount // 10, "plain", Random(op.amount), f"n{self._place}")
        return name

    def _op_grow(self, op: Op) -> str:
        if (found := self._source_log(op)) is None:
            return "-"
        count = len(self._source[found[0]].partitions) + 1
        if count > 3:
            return "-"
        self._world.source.grow(found[0], count)
        return f"to {count}"

    def _op_configure(self, op: Op) -> str:
        if (found := self._source_log(op)) is None or not op.kind:
            return "-"
        name, _, _ = found
        self._keep(op.topic)
        self._world.source.configure(name, TOPIC_CONFIGS[op.kind])
        self._source_configs[name] = op.kind
        for copy in self._copies.values():
            if copy.source == op.topic and self._is_of_now(copy):
                copy.own_times |= op.kind == "append"
                copy.compacted |= op.kind == "compact"
        if op.kind == "short" or ("old" in self._source_causes[name] and op.kind != "forever"):
            self._expires(op.topic)
        return f"as {op.kind}"

    def _op_damage_source(self, op: Op) -> str:
        return self._damage_batch("source", op)

    def _op_damage_target(self, op: Op) -> str:
        return self._damage_batch("target", op)

    def _damage_batch(self, side: Side, op: Op) -> str:
        found = self._source_log(op) if side == "source" else self._target_log(op)
        if found is None:
            return "-"
        name, partition, log, *copies = found
        if (batch := self._world.damage(side, name, partition, log.start, op.amount)) is None:
            return "-"
        # a second time turns the same bit back
        self._damaged[side].setdefault((name, partition), set()).symmetric_difference_update({batch})
        if side == "source":
            self._cause(op.topic, "source damaged")
        for copy in copies:
            copy.causes.add("target damaged")
        return f"{name}-{partition} from {batch[0]} to before {batch[1]} of {log.end}"

    def _op_set_target(self, op: Op) -> str:
        if (found := self._target_log(op)) is None or not op.kind:
            return "-"
        name, _, _, copy = found
        copy.causes.add("target set")
        target = self._world.target
        target.configure(name, target.configs(name) | COPY_CONFIGS[op.kind])
        self._rebase()
        return f"{name} {op.kind}"

    def _op_expire_target(self, op: Op) -> str:
        if (found := self._target_log(op)) is None:
            return "-"
        name, partition, log, copy = found
        before = log.start + (log.end - log.start) * op.amount // 100
        if before <= log.start or self._kind(op.topic) == "compact":
            return "-"
        copy.causes.add("target expired")
        copy.others = copy.kept = False  # they may be gone
        if copy.start.get(partition, 0) is not None:
            copy.start[partition] = before
        self._expired = True
        self._world.target.expire(name, partition, before)
        return f"{name}-{partition} before {before} of {log.end}"

    def _op_cut_target(self, op: Op) -> str:
        if (found := self._target_log(op)) is None:
            return "-"
        name, partition, log, copy = found
        below = self._world.cut_below("target", name, partition, log.start, op.amount)
        if below >= log.end:
            return "-"
        copy.causes.add("target cut")
        copy.others = copy.kept = False
        self._world.crash("target", name, partition, below)
        logs = self._readers["target"].topics([name])[name].partitions
        self._cut_from[name, partition] = min(below, logs[partition].end)  # one that was made just now may be empty
        if not copy.owned and not any(log.end for log in logs.values()):  # an empty one may be taken over
            copy.owned, copy.source_id = True, self._source_id(copy.source)
            copy.causes.discard("source recreated")  # that was before
            copy.causes.add("foreign")  # a live mirror may not have looked again
            self._rebase()
        self._crashed()
        return f"{name}-{partition} from {log.end} to {below}"

    def _op_cut_journal(self, op: Op) -> str:
        topic = self._readers["target"].topics([self._journal]).get(self._journal)
        if topic is None or not (end := topic.partitions[0].end):
            return "-"
        below = self._world.cut_below("target", self._journal, 0, 0, op.amount)
        self._journal_lost()
        self._world.crash("target", self._journal, 0, below)
        self._crashed()
        return f"from {end} to {below}"

    def _op_delete_journal(self, _op: Op) -> str:
        self._journal_lost()
        self._world.target.delete(self._journal)
        return "deleted"

    def _op_delete_target(self, op: Op) -> str:
        if (found := self._target_log(op)) is None:
            return "-"
        name, _, _, copy = found
        copy.causes.add("target deleted")
        self._deleted_settings.setdefault(name, {}).update(self._configs.get(name, {}))
        self._world.target.delete(name)
        self._forget_damage("target", name)
        self._rebase()
        return "deleted"

    def _op_stranger_writes(self, op: Op) -> str:
        if (found := self._target_log(op)) is None:
            return "-"
        name, partition, _, copy = found
        copy.causes.add("stranger")
        amount = 1 + op.amount // 10
        self._world.target.produce(name, partition, amount, op.kind, Random(op.amount), f"z{self._place}")
        copy.others |= self._is_of_now(copy)
        self._rebase()
        return f"{amount} to {name}-{partition}"

    def _op_stranger_topic(self, op: Op) -> str:
        """Somebody's topic of the name that a copy would have."""
        name = self._names[op.topic]
        if name in self._target or name.replace(".", "_") in self._strangers:
            return "-"
        self._world.target.create(name, 1, {"retention.ms": "-1"})
        copy = self._copies[name] = Copy(op.topic, owned=not op.amount, source_id=self._source_id(op.topic))
        if op.amount:
            self._world.target.produce(name, 0, op.amount, "old", Random(op.amount), f"z{self._place}")
            copy.causes.add("stranger")
        else:
            self._follow_source(copy)
        self._rebase()
        return f"{name} with {op.amount}"

    def _op_clash(self, op: Op) -> str:
        """A topic whose name is another one's but for a dot, which Kafka refuses: a source topic's, or that of the one
        that appears next.
        """
        name = self._names[op.topic]
        if name in self._target:
            name = self._next_name() or name
        other = name.replace(".", "_")
        if name in self._target or other in self._strangers:
            return "-"
        self._flow_causes.add("clash")
        try:
            self._world.target.create(other, 1, {"retention.ms": "-1"})
        except KafkaException as problem:
            if problem.args[0].code() != KafkaError.TOPIC_EXCEPTION:
                raise
            return "the mirror was first"
        self._strangers.add(other)
        self._copies[other] = Copy(op.topic, owned=False)
        self._rebase()
        return other
