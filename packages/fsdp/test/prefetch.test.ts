// These tests check what is gathered when: units used several times, frozen ones, nested and
// sibling trees, a changing program. They check counts and orders, and overlap.test.ts checks
// times.

import type { ProcessGroup } from '@shardweave/collectives';
import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { checkpoint, type Module, Sgd } from '@shardweave/nn';
import { add, type Device, type Tensor, tanh } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  freeze,
  inputs,
  layer,
  lossOf,
  moduleOf,
  onRanks,
  outputOf,
  rowsOf,
  Stack,
  trainOnce,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';
import { expectEqualTraining, type Scenario, type Wrap, wrapIn } from './support/sharding.js';

/**
 * This logs the units in the order in which their gathers started on this rank, without the marks
 * at the ends of phases.
 */
class GatherLog {
  #seen: { readonly seq: number; readonly tag: string }[] = [];

  constructor(group: ProcessGroup) {
    group.onTrace = ({ name, seq, tag }) => {
      if (name === 'allGather') {
        this.#seen.push({ seq, tag: tag! });
      }
    };
  }

  /** Returns the gathers since the last call. */
  take(): string[] {
    return this.#seen
      .splice(0)
      .sort((a, b) => a.seq - b.seq)
      .map(({ tag }) => tag);
  }
}

const isWeight = (name: string) => name.endsWith('weight');
it('what a gather brings that was on its way during a step is stale from then on', () =>
  onRanks(2, async ({ device, group, rank }) => {
    const wrap = wrapIn({ group }, { reshardAfterForward: false });
    let between: (() => Promise<void>) | undefined;
    const stepping = moduleOf(device, {}, async (_, x: Tensor) => {
      await between?.();
      return x;
    });
    const model = wrap(new Stack(device, [wrap(layer(device)), stepping, wrap(layer(device))]));
    const rows = { first: rank, count: 1 };
    const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
    await trainOnce(model, rows);
    between = () => optimizer.step(); // The last layer's gather has begun by then.
    await outputOf(model, rows);
    between = undefined;
    const output = await outputOf(model, rows);

    const plain = new Stack(device, [layer(device), stepping, layer(device)]);
    const weights = await weightsOf(model);
    for (const [name, tensor] of plain.namedParameters()) {
      tensor.storage.write(new Uint8Array(weights.get(name)!.slice().buffer));
    }
    expect(output).toEqual(await outputOf(plain, rows));
  }));

describe('frozen parameters', () => {
  it('units below the first trained one are not gathered in backward, those above are', () =>
    onRanks(2, async (rank) => {
      const { device, group } = rank;
      const wrap = wrapIn(rank);
      const isTrained = [false, false, true, false, true];
      const model = wrap(
        new Stack(
          device,
          isTrained.map((isOn, i) => wrap(isOn ? layer(device) : freeze(layer(device)), String(i))),
        ),
        'root',
      ) as FullyShardedDataParallel;
      await model.initialize();
      const log = new GatherLog(group);
      for (let step = 0; step < 3; step++) {
        await trainOnce(model, rowsOf(rank), step);
        expect(log.take()).toEqual(['0', '1', '2', '3', '4', '4', '3', '2']);
        model.zeroGrad();
      }
    }));

  it('frozen weights under trained biases: backward holds one layer at a time', () =>
    onRanks(2, async (rank) => {
      const { device } = rank;
      const wrap = wrapIn(rank);
      const layers = Array.from({ length: 5 }, (_, i) =>
        wrap(freeze(layer(device), isWeight), String(i)),
      );
      const model = wrap(new Stack(device, layers), 'root');
      await trainOnce(model, rowsOf(rank));
      const bytes = model
        .instances()
        .map(({ units }) => units.reduce((sum, unit) => sum + unit.full.storage.byteLength, 0));
      for (let step = 0; step < 2; step++) {
        await device.scope(async () => {
          const loss = lossOf((await model.call(inputs(device, rowsOf(rank), step))) as Tensor);
          expect(device.memory().live.gathered).toBe(0);
          device.ledger.resetPeak();
          await loss.backward();
          expect(device.memory().peak.gathered).toBe(Math.max(...bytes));
        });
      }
    }));

  /** Uses one module twice in a row. */
  const twice = (device: Device, part: Module) =>
    moduleOf(device, { part }, async ({ part }, x: Tensor) =>
      tanh(await part.call(tanh(await part.call(x)))),
    );

  it.each([
    // The unit is dropped after its later use in backward, since much may lie between the two, and
    // gathered again.
    { what: 'partly frozen', which: isWeight, numGathers: 2 + 2 },
    { what: 'all frozen', which: () => true, numGathers: 2 + 2 },
    // The gradient is final only after the earlier use, so the unit stays until then.
    { what: 'trained', which: () => false, numGathers: 2 + 1 },
  ])('two uses of a $what module: $numGathers gathers a unit', async ({ which, numGathers }) => {
    const build: Scenario['build'] = (device, wrap) =>
      wrap(
        new Stack(device, [
          wrap(layer(device), { name: 'below' }),
          twice(device, wrap(freeze(layer(device), which), { name: 'twice' })),
        ]),
        { name: 'root' },
      );
    await expectEqualTraining({ build }, 2);
    await onRanks(2, async (rank) => {
      const wrap: Wrap = (module, options) => wrapIn(rank)(module, options);
      const model = build(rank.device, wrap);
      const log = new GatherLog(rank.group);
      for (let step = 0; step < 3; step++) {
        await trainOnce(model, rowsOf(rank), step);
        const gathers = log.take().filter((tag) => tag.startsWith('twice'));
        const numUnits = new Set(gathers).size;
        expect(gathers).toHaveLength(numGathers * numUnits);
        model.zeroGrad();
      }
    });
  });
});

describe('a module inside noGrad, and a checkpointed one', () => {
  const withTeacher = (device: Device, student: Module, teacher: Module) =>
    moduleOf(device, { student, teacher }, async ({ student, teacher }, x: Tensor) => {
      const target = await device.noGrad(() => teacher.call(x));
      return add(await student.call(x), target);
    });

  it('a teacher is gathered in forward only, a checkpointed student ahead of its second run', () =>
    onRanks(2, async (rank) => {
      const { device, group } = rank;
      const wrap = wrapIn(rank);
      const student = new Stack(device, [
        checkpoint(wrap(layer(device), 's0')),
        checkpoint(wrap(layer(device), 's1')),
        checkpoint(wrap(layer(device), 's2')),
      ]);
      const teacher = wrap(layer(device), 'teacher');
      const bare = withTeacher(device, student, teacher);
      const model = wrap(bare, 'root');
      await model.initialize();
      const log = new GatherLog(group);
      for (let step = 0; step < 3; step++) {
        await trainOnce(model, rowsOf(rank), step);
        const seen = log.take();
        expect(seen.slice(0, 4)).toEqual(['teacher', 's0', 's1', 's2']);
        // In backward each layer is gathered for its second run, and again for that run's own
        // backward.
        expect(seen.slice(4).filter((tag) => tag === 'teacher')).toEqual([]);
        expect(new Set(seen.slice(4))).toEqual(new Set(['s2', 's1', 's0']));
        model.zeroGrad();
      }
    }));
});

describe.each([0, 2000, Number.POSITIVE_INFINITY])(
  'with %d bytes gathered ahead',
  (gatherCapBytes) => {
    /**
     * Orders of layers by step. With '-', the model evaluates the first order and then trains the
     * second.
     */
    const PROGRAM = ['012', '012', '201', '001', '1', '2', '012', '-10 012', '01210', '012'];

    it('a program whose order changes, with evaluations between, is one process', async () => {
      const find = (model: Module) =>
        (model instanceof FullyShardedDataParallel ? model.module : model) as Stack;
      const run: Scenario['run'] = (model, rows, step) => {
        const { device } = model;
        const program = find(model);
        const [first, second] = PROGRAM[step]!.split(' ');
        return device.scope(async () => {
          program.order = [...(second ?? first!)];
          const loss = lossOf((await model.call(inputs(device, rows, step))) as Tensor);
          if (second !== undefined) {
            // The order changes between the forward and its backward.
            program.order = [...first!.slice(1)];
            await device.noGrad(() => model.call(inputs(device, rows, step)));
          }
          await loss.backward();
          return loss.item();
        });
      };
      const build: Scenario['build'] = (device, wrap) => {
        const nested = new Stack(device, [wrap(layer(device)), layer(device), wrap(layer(device))]);
        const parts = [wrap(layer(device)), wrap(checkpoint(layer(device))), wrap(nested)];
        return wrap(new Stack(device, parts));
      };
      await expectEqualTraining({ fsdp: { gatherCapBytes }, build, run, steps: PROGRAM.length }, 2);
    });
  },
);

describe('sibling roots over one group', () => {
  it('sibling roots that take turns in forward and backward start in one order, whoever is late', async () => {
    const orders = await onRanks(
      3,
      async (rank) => {
        const { device, group } = rank;
        const wrap = wrapIn(rank, { processGroupReduceScatter: 'default' });
        const pair = (name: string) =>
          wrap(
            new Stack(device, [wrap(layer(device), `${name}0`), wrap(layer(device), `${name}1`)]),
            name,
          );
        const [a, b] = [pair('a'), pair('b')];
        const calls = new Map<number, string>();
        group.onTrace = ({ name, seq, tag }) => {
          if (name !== 'send' && name !== 'recv') {
            calls.set(seq, `${name} ${tag}`);
          }
        };
        for (let step = 0; step < 3; step++) {
          await device.scope(async () => {
            const x = () => inputs(device, rowsOf(rank), step);
            const [a0, b0] = [await a.call(x()), await b.call(x())];
            const a1 = await a.call(b0);
            await lossOf(add(a1, a0)).backward();
            await lossOf(await b.call(await a.call(x()))).backward();
          });
        }
        return [...calls].sort(([a], [b]) => a - b).map(([, call]) => call);
      },
      { wrapGroup: late },
    );
    expect(orders[1]).toEqual(orders[0]);
    expect(orders[2]).toEqual(orders[0]);
    expect(orders[0]!.length).toBeGreaterThan(50);
  });

  /** Calls of odd ranks end late, each by another number of turns of the event loop. */
  function late(group: ProcessGroup): ProcessGroup {
    if (group.rank % 2 === 0) {
      return group;
    }
    let calls = 0;
    for (const name of ['allGather', 'reduceScatter'] as const) {
      const call = group[name].bind(group) as ProcessGroup['reduceScatter'];
      group[name] = async (input, output, options) => {
        await call(input, output, options as Parameters<typeof call>[2]);
        calls += 1;
        for (let turn = 0; turn < calls % 5; turn++) {
          await new Promise((resolve) => setTimeout(resolve));
        }
      };
    }
    return group;
  }
});
