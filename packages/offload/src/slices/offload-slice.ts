// Consecutive layers that are on the device together.

import { type BatchNorm1d, checkpoint, isBatchNorm, type Module, Sequential } from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import type { LayerCalls } from './layer-calls.js';
import type { OffloadedFlat } from './offloaded-flat.js';

export class OffloadSlice {
  /** Runs its layers one after another, checkpointed where activations are. */
  readonly run: Module<[previous: unknown, args: readonly unknown[]], unknown>;
  /** The index of its first layer in the model, and that after its last. */
  readonly start: number;
  readonly end: number;
  readonly flats: readonly OffloadedFlat[];
  /** Its batch normalizations, whose running statistics must be updated once for each batch. */
  readonly batchNorms: readonly BatchNorm1d[];
  /** The names of its layers in the model, for messages. */
  readonly layerNames: readonly string[];

  constructor(
    device: Device,
    layers: readonly { readonly name: string; readonly module: Module }[],
    options: {
      /** The index of its first layer in the model. */
      readonly start: number;
      readonly calls: LayerCalls;
      readonly flats: readonly OffloadedFlat[];
      readonly checkpointActivation: boolean;
      /** Called around each run of its layers, including the second run of a checkpoint. */
      readonly around: (slice: OffloadSlice, run: () => Promise<unknown>) => Promise<unknown>;
    },
  ) {
    const body = new SliceBody(device, layers, {
      start: options.start,
      calls: options.calls,
      around: (run) => options.around(this, run),
    });
    this.run = options.checkpointActivation ? checkpoint(body) : body;
    this.start = options.start;
    this.end = options.start + layers.length;
    this.flats = options.flats;
    this.batchNorms = body
      .namedModules()
      .flatMap(([, inner]) => (isBatchNorm(inner) ? [inner] : []));
    this.layerNames = layers.map(({ name }) => name);
  }

  /** The bytes on the host while its parameters are on their way to the device. */
  get loadBytes(): number {
    return this.flats.reduce((sum, flat) => sum + flat.loadBytes, 0);
  }
}

class SliceBody extends Sequential<[previous: unknown, args: readonly unknown[]], unknown> {
  readonly #start: number;
  readonly #calls: LayerCalls;
  readonly #around: (run: () => Promise<unknown>) => Promise<unknown>;

  constructor(
    device: Device,
    layers: readonly { readonly module: Module }[],
    options: {
      readonly start: number;
      readonly calls: LayerCalls;
      readonly around: (run: () => Promise<unknown>) => Promise<unknown>;
    },
  ) {
    super(
      device,
      layers.map(({ module }) => module),
    );
    this.#start = options.start;
    this.#calls = options.calls;
    this.#around = options.around;
  }

  override argumentsOf(
    index: number,
    previous: unknown,
    [, args]: readonly [unknown, readonly unknown[]],
  ): readonly unknown[] {
    return this.#calls.argumentsOf(this.#start + index, previous, args);
  }

  override forward(previous: unknown, args: readonly unknown[]): Promise<unknown> {
    return this.#around(() => super.forward(previous, args));
  }
}
