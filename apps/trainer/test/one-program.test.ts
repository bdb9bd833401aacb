// One program under every wrapper, as the READMEs of the wrappers have it: only the lines that wrap
// are others. It trains with a loss scale and clipped gradients, is saved, loaded in a new process,
// goes on, and is exported, in f32, bf16 and f16.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type PieceStore, piecesIn } from '@shardweave/checkpoint';
import { createMemoryGroup, type ProcessGroup } from '@shardweave/collectives';
import { DistributedDataParallel } from '@shardweave/ddp-buckets';
import { FullyShardedDataParallel } from '@shardweave/fsdp';
import {
  clipGradNorm,
  gradNorm,
  Linear,
  type Module,
  ParameterInit,
  Sequential,
  Sgd,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import { OffloadModel } from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { Device, mean, square, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { afterAll, describe, expect, it } from 'vitest';
import { onRanks, type Rank } from '../../../tooling/test-kit/ranks.js';

const DTYPES = ['f32', 'bf16', 'f16'] as const;

type Train = (
  net: Sequential,
  options: {
    readonly computeDType: (typeof DTYPES)[number];
    readonly processGroup: ProcessGroup;
    readonly store: PieceStore;
    readonly last: number;
    batch(step: number): Tensor;
    report(step: number, norm: number): void;
    write(piece: Uint8Array): void;
  },
) => Promise<void>;

// ---- the texts -------------------------------------------------------------------------------

const PACKAGES = join(import.meta.dirname, '../../../packages');
const PROGRAM = /^```js\n(import (?:(?!^```)[\s\S])*?^export async function train\([\s\S]*?)^```/m;
/** Matches imports, options, the lines that wrap, and what is alike in all. */
const PARTS =
  /^((?:import .*\n)+)([\s\S]*?)\{ (?:\w+, )*(store, .*\n)([\s\S]*?)( {2}const optimizer[\s\S]*)/m;

const places: string[] = [];
afterAll(() => {
  for (const place of places) {
    rmSync(place, { recursive: true });
  }
});

function textIn(name: string): string {
  return PROGRAM.exec(readFileSync(join(PACKAGES, name, 'README.md'), 'utf8'))![1]!;
}

/** The program of a README, or one with other lines in place of those that wrap. */
async function load(name: string, wrapping?: string): Promise<Train> {
  const text = textIn(name);
  const [, , , , lines] = PARTS.exec(text)!;
  const place = mkdtempSync(join(import.meta.dirname, '.readme-'));
  places.push(place);
  const path = join(place, 'train.js');
  writeFileSync(
    path,
    wrapping === undefined
      ? text
      : text
          .replace(lines!, wrapping)
          .replace(
            'import { AdamW',
            "import { packParameters as pack } from '@shardweave/nn';\nimport { AdamW",
          ),
  );
  return ((await import(/* @vite-ignore */ path)) as { readonly train: Train }).train;
}

it.each(['ddp-buckets', 'fsdp', 'offload'])('is the same in %s but for its lines', (name) => {
  const [nn, other] = ['nn', name].map((each) => PARTS.exec(textIn(each))!);
  const [, imports, head, options, , rest] = other!;
  expect([head, options, rest]).toEqual([nn![2], nn![3], nn![5]]);
  const names = (text: string) => new Set(text.match(/\w+/g));
  const own = ['Linear', 'fullyShard', 'DistributedDataParallel', 'OffloadModel'];
  const added = [...names(imports!)].filter((each) => !names(nn![1]!).has(each));
  expect(own).toEqual(expect.arrayContaining(added.filter((each) => /[A-Z]/.test(each))));
});

it('has at most 40 lines', () => {
  expect(textIn('nn').split('\n').length).toBeLessThanOrEqual(40);
});

// ---- runs ------------------------------------------------------------------------------------

function net(device: Device, seed: number): Sequential {
  const init = new ParameterInit(device, { seed });
  return new Sequential(device, [
    new Linear(device, { inFeatures: 3, outFeatures: 7, init }),
    new Linear(device, { inFeatures: 7, outFeatures: 3, init }),
  ]);
}

function rows(step: number): Float32Array {
  return Float32Array.from({ length: 12 }, (_, i) => Math.sin(i + 3 * step));
}

const PLAIN = '  const model = net;\n';
/** Wraps the second block, and not the root, whose first block is alike on all ranks. */
const IN_PART = `  const block = { processGroup, mixedPrecision: computeDType !== 'f32', computeDType };
  pack(net.children().get('0'), { computeDType });
  net.replaceChild('1', fullyShard(net.children().get('1'), block));
  const model = net;
`;

interface Program {
  readonly name: string;
  readonly numRanks: number;
  readonly readme: string;
  /** The lines that wrap, where they are not the README's. */
  readonly wrapping?: string;
  /** Whether it is run in 16 bits, too; a plain model computes in f32 alone. */
  readonly isMixed?: boolean;
}

const PROGRAMS: readonly Program[] = [
  { name: 'plain', numRanks: 1, readme: 'nn', wrapping: PLAIN },
  { name: 'packed', numRanks: 1, readme: 'nn', isMixed: true },
  { name: 'ddp at 2', numRanks: 2, readme: 'ddp-buckets', isMixed: true },
  { name: 'fsdp at 1', numRanks: 1, readme: 'fsdp' },
  { name: 'fsdp at 2', numRanks: 2, readme: 'fsdp', isMixed: true },
  { name: 'fsdp in part at 2', numRanks: 2, readme: 'fsdp', wrapping: IN_PART },
  { name: 'offload', numRanks: 1, readme: 'offload', isMixed: true },
];

/** Norms and exported file of a run that is ended after two steps and goes on for two. */
async function run(numRanks: number, train: Train, computeDType: (typeof DTYPES)[number]) {
  const store = piecesIn(createHostStore());
  const backend = createReferenceBackend();
  const norms: number[] = [];
  let file: readonly Uint8Array[] = [];
  for (const last of [2, 4]) {
    const perRank = await onRanks(
      numRanks,
      async ({ device, group: processGroup }) => {
        const seen: number[] = [];
        const pieces: Uint8Array[] = [];
        await train(net(device, 1), {
          ...{ computeDType, processGroup, store, last },
          batch: (step) => device.tensor(rows(step), [4, 3]),
          report: (step, norm) => void seen.push(step, norm),
          write: (piece) => void pieces.push(piece.slice()),
        });
        return { seen, pieces };
      },
      { backend },
    );
    expect(perRank.map(({ seen }) => seen)).toEqual(perRank.map(() => perRank[0]!.seen));
    norms.push(...perRank[0]!.seen);
    file = perRank[0]!.pieces;
  }
  return { norms, file };
}

const expected = new Map<string, ReturnType<typeof run>>();

/** What one process does with a packed model. */
function alone(dtype: (typeof DTYPES)[number]): ReturnType<typeof run> {
  const known = expected.get(dtype) ?? load('nn').then((train) => run(1, train, dtype));
  expected.set(dtype, known);
  return known;
}

describe.each(DTYPES)('in %s', (dtype) => {
  const programs = PROGRAMS.filter(({ isMixed }) => dtype === 'f32' || isMixed);
  it.each(programs)(
    '$name trains, is saved, goes on and is exported as one process does, bit for bit',
    async ({ numRanks, readme, wrapping }) => {
      const got = await run(numRanks, await load(readme, wrapping), dtype);
      expect(got.norms.filter((_, i) => i % 2 === 0)).toEqual([0, 1, 2, 3]);
      expect(got).toEqual(await alone(dtype));
    },
  );
});

// ---- mistakes that no wrapper may let pass -----------------------------------------------------

type Wrap = (model: Sequential, processGroup: ProcessGroup) => Module;

const ON_RANKS: readonly (readonly [name: string, wrap: Wrap])[] = [
  ['ddp', (model, processGroup) => new DistributedDataParallel(model, { processGroup })],
  ['fsdp', (model, processGroup) => new FullyShardedDataParallel(model, { processGroup })],
];

const ALL: typeof ON_RANKS = [...ON_RANKS, ['offload', (model) => new OffloadModel(model)]];

describe.each(ALL)('%s', (name, wrap) => {
  /** Makes a call beside a backward that nobody has awaited; gives the code of its refusal. */
  async function beside(call: (model: Module, rank: Rank) => Promise<unknown>) {
    const codes = await onRanks(name === 'offload' ? 1 : 2, async (rank) => {
      const { device, group } = rank;
      const model = wrap(net(device, 1), group);
      return device.scope(async () => {
        const loss = mean(square(await model.call(device.tensor(rows(0), [4, 3]))));
        const running = loss.backward();
        const code = await call(model, rank).then(
          () => 'accepted',
          (error: { readonly code: string }) => error.code,
        );
        await running;
        return code;
      });
    });
    return codes.every((code) => code === codes[0]) ? codes[0] : codes.join();
  }

  it('refuses a step, a norm, a save and a forward beside a backward that nobody awaited', async () => {
    const busy = name === 'offload' ? 'OFFLOAD_BUSY' : 'OPTIMIZER';
    expect(await beside((model) => new Sgd(model.parameters(), { lr: 1 }).step())).toBe(
      'OPTIMIZER',
    );
    expect(await beside((model) => clipGradNorm(model, 1))).toBe('OPTIMIZER');
    const store = piecesIn(createHostStore());
    expect(await beside((model) => saveCheckpoint(model, store))).toBe(busy);
    const forward = await beside((model, { device }) => model.call(device.tensor(rows(1), [4, 3])));
    expect(forward).toBe(name === 'offload' ? 'OFFLOAD_BUSY' : 'STATE');
  });
});

describe.each(ON_RANKS)('%s over ranks', (_, wrap) => {
  it('a save on the first rank alone names the call, whether the other waits or has left', async () => {
    for (const isWaiting of [true, false]) {
      const [first, other] = createMemoryGroup(2, { timeoutMs: 500 });
      const models = [first!, other!].map((group) =>
        wrap(net(new Device(createReferenceBackend()), 1), group),
      );
      await Promise.all(models.map(async (model) => gradNorm(model)));
      const save = saveCheckpoint(models[0]!, piecesIn(createHostStore()));
      const refused = expect(save).rejects.toThrow(/saveCheckpoint/);
      if (!isWaiting) {
        await other!.close();
      }
      await refused;
      await Promise.all([first!.close(), other!.close()]);
    }
  });

  it('a save that fails on one rank is told to the others in whole sentences', async () => {
    const messages = await onRanks(2, async ({ device, group, rank }) => {
      const model = wrap(net(device, 1), group);
      const files = piecesIn(createHostStore());
      await gradNorm(model);
      const wrong = saveCheckpoint(model, rank === 0 ? files : ('run' as unknown as PieceStore));
      return wrong.catch(({ message }: Error) => message);
    });
    for (const message of messages) {
      expect(message).not.toContain('..');
    }
    expect(messages[0]).toContain('. This rank stopped with it.');
  });
});

it('a generator and a critic of two wrappers have one norm, which clips both', async () => {
  const perRank = await onRanks(2, async ({ device, group }) => {
    const norms: number[] = [];
    const options = { processGroup: group };
    const plain = (model: Sequential): Module => model;
    const ddp = (model: Sequential): Module => new DistributedDataParallel(model, options);
    const fsdp = (model: Sequential): Module => new FullyShardedDataParallel(model, options);
    for (const [first, second] of [
      [plain, plain],
      [fsdp, fsdp],
      [ddp, fsdp],
    ] as const) {
      const models = [first(net(device, 1)), second(net(device, 2))];
      const optimizer = new Sgd(
        models.flatMap((model) => model.parameters()),
        { lr: 1 },
      );
      await device.scope(async () => {
        for (const model of models) {
          await mean(square(await model.call(device.tensor(rows(0), [4, 3])))).backward();
        }
        norms.push(await gradNorm(models));
        const { norm, scale } = await clipGradNorm(models, 0.01);
        expect(await norm.item()).toBe(Math.fround(norms[0]!));
        await optimizer.step({ gradScale: scale });
      });
      norms.push((await stateDict(models)).size);
    }
    return norms;
  });
  for (const [plain, size, ...wrapped] of perRank) {
    expect(wrapped).toEqual([plain, size, plain, size]);
    expect(size).toBe(8);
  }
});
