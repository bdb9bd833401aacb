// The same small model and optimizer under every strategy. All ranks get the same rows, and means
// over one or two equal gradients are exact, so every strategy has the same bits.

import { type PieceStore, piecesIn } from '@shardweave/checkpoint';
import * as ddp from '@shardweave/ddp-buckets';
import * as fsdp from '@shardweave/fsdp';
import * as nn from '@shardweave/nn';
import * as offload from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { type Device, mean, square, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { onRanks, type Rank } from '../../../../tooling/test-kit/ranks.js';

// biome-ignore lint/suspicious/noExplicitAny: an optimizer of any options
type AnyOptimizer = nn.Optimizer<any>;

interface SaveOptions {
  readonly extra?: Readonly<Record<string, unknown>>;
  readonly optimizer?: AnyOptimizer;
  readonly onlyTrained?: boolean;
}

/** A model under one strategy, and what a program does with it. Every rank makes each call. */
export interface Wrapped {
  readonly model: nn.Module<[x: Tensor], Tensor>;
  save(store: PieceStore, options: SaveOptions): Promise<void>;
  load(store: PieceStore, options: SaveOptions & { readonly strict?: boolean }): Promise<unknown>;
  /** Undefined where the values rest in a store that cannot pin them. */
  readonly capture: ((options: SaveOptions) => Promise<nn.CapturedModule>) | undefined;
  norm(): Promise<number>;
  state(): Promise<ReadonlyMap<string, { readonly data: Uint8Array }>>;
  /** Loads its own state dict. */
  reload(): Promise<void>;
}

export interface Strategy {
  readonly name: string;
  readonly numRanks: number;
  wrap(module: nn.Sequential<[x: Tensor], Tensor>, rank: Rank): Wrapped;
}

/** What every strategy does with nn's functions. */
function wrapped(
  model: Wrapped['model'],
  { isPinning = true }: { readonly isPinning?: boolean } = {},
): Wrapped {
  return {
    model,
    save: (store, options) => nn.saveCheckpoint(model, store, options),
    load: (store, options) => nn.loadCheckpoint(model, store, options),
    capture: isPinning ? (options) => nn.captureCheckpoint(model, options) : undefined,
    norm: () => nn.gradNorm(model),
    state: () => nn.stateDict(model),
    reload: async () => nn.loadStateDict(model, await nn.stateDict(model)),
  };
}

function bare(model: nn.Sequential<[x: Tensor], Tensor>): Wrapped {
  return wrapped(model);
}

export function sharded(options: Partial<fsdp.FsdpOptions>): Strategy['wrap'] {
  return (module, { group }) => {
    const wrap = <M extends nn.Module>(inner: M) =>
      new fsdp.FullyShardedDataParallel(inner, { processGroup: group, ...options });
    module.replaceChild('1', wrap(module.children().get('1')!));
    const model = wrap(module);
    const isPinning = options.moveParamsToCpu !== true;
    return wrapped(model, { isPinning });
  };
}

export function replicated(options: Partial<ddp.DdpOptions>): Strategy['wrap'] {
  return (module, { group }) =>
    wrapped(new ddp.DistributedDataParallel(module, { processGroup: group, ...options }));
}

export function offloaded(options: offload.OffloadOptions): Strategy['wrap'] {
  return (module) => {
    const model = new offload.OffloadModel(module, { store: createHostStore(), ...options });
    return wrapped(model, { isPinning: false });
  };
}

export const STRATEGIES: readonly Strategy[] = [
  { name: 'plain', numRanks: 1, wrap: bare },
  {
    name: 'packed',
    numRanks: 1,
    wrap: (module) => {
      nn.packParameters(module);
      return bare(module);
    },
  },
  { name: 'ddp at 2', numRanks: 2, wrap: replicated({}) },
  { name: 'fsdp at 1', numRanks: 1, wrap: sharded({}) },
  { name: 'fsdp at 2', numRanks: 2, wrap: sharded({}) },
  { name: 'fsdp at 2 on the host', numRanks: 2, wrap: sharded({ moveParamsToCpu: true }) },
  { name: 'offload', numRanks: 1, wrap: offloaded({ numSlices: 2 }) },
];

export function place(): PieceStore {
  return piecesIn(createHostStore());
}

export function net(device: Device): nn.Sequential<[x: Tensor], Tensor> {
  const init = new nn.ParameterInit(device, { seed: 5 });
  return new nn.Sequential(device, [
    new nn.Linear(device, { inFeatures: 3, outFeatures: 7, init }),
    new nn.Linear(device, { inFeatures: 7, outFeatures: 5, init }),
  ]);
}

/**
 * Runs a program on all ranks of a strategy, which gets the bare module, too. Every rank must
 * return the same; one is returned.
 */
export async function under<T>(
  strategy: Strategy,
  program: (wrapped: Wrapped, bare: nn.Module) => Promise<T>,
  build = net,
): Promise<T> {
  const backend = createReferenceBackend();
  const run = (rank: Rank) => {
    const module = build(rank.device);
    return program(strategy.wrap(module, rank), module);
  };
  const [result] = await onRanks(strategy.numRanks, run, { backend });
  return result!;
}

/** The parameter of a name in the bare model. */
export function parameterOf({ model }: Wrapped, name: string): Tensor {
  return new Map(model.namedParameters()).get(name)!;
}

/** The backward of one batch, equal on all ranks. */
export async function backward({ model }: Wrapped, step: number): Promise<void> {
  const { device } = model;
  await device.scope(async () => {
    const x = device.tensor(
      Float32Array.from({ length: 12 }, (_, i) => Math.sin(i + 3 * step)),
      [4, 3],
    );
    await mean(square(await model.call(x))).backward();
  });
}

export async function train(
  wrapped: Wrapped,
  optimizer: AnyOptimizer,
  steps: readonly number[],
): Promise<void> {
  for (const step of steps) {
    await backward(wrapped, step);
    await optimizer.step();
    optimizer.zeroGrad();
  }
}

/** The values of all parameters by name, as texts that compare bit for bit. */
export async function textOf(wrapped: Wrapped): Promise<Record<string, string>> {
  const entries = [...(await wrapped.state())].map(([name, { data }]) => {
    return [name, Buffer.from(data).toString('hex')] as const;
  });
  return Object.fromEntries(entries);
}
