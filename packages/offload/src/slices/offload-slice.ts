// Consecutive layers that are on the device together.

import { type BatchNorm1d, checkpoint, isBatchNorm, type Module, Sequential } from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import type { LayerCalls } from './layer-calls.js';
import type { OffloadedFlat } from './offloaded-flat.js';

/** A layer of the model. */
export interface Layer {
  readonly name: string;
  readonly module: Module;
  /** The flat parameters that it uses alone, and those that it shares. */
  readonly flats: OffloadedFlat[];
}

/** A run of layers, and what is around each run of them. */
export interface OffloadSliceOptions {
  readonly device: Device;
  readonly layers: readonly Layer[];
  /** The index of its first layer in the model. */
  readonly start: number;
  readonly calls: LayerCalls;
  readonly checkpointActivation: boolean;
  /** Called around each run of its layers, including the second run of a checkpoint. */
  around(slice: OffloadSlice, run: () => Promise<unknown>): Promise<unknown>;
}

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

  constructor(options: OffloadSliceOptions) {
    const { layers, start } = options;
    const body = new SliceBody(this, options);
    this.run = options.checkpointActivation ? checkpoint(body) : body;
    this.start = start;
    this.end = start + layers.length;
    this.flats = [...new Set(layers.flatMap((layer) => layer.flats))];
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
  readonly #slice: OffloadSlice;
  readonly #options: OffloadSliceOptions;

  constructor(slice: OffloadSlice, options: OffloadSliceOptions) {
    super(
      options.device,
      options.layers.map(({ module }) => module),
    );
    this.#slice = slice;
    this.#options = options;
  }

  override argumentsOf(
    index: number,
    previous: unknown,
    [, args]: readonly [unknown, readonly unknown[]],
  ): readonly unknown[] {
    const { calls, start } = this.#options;
    return calls.argumentsOf(start + index, previous, args);
  }

  override forward(previous: unknown, args: readonly unknown[]): Promise<unknown> {
    return this.#options.around(this.#slice, () => super.forward(previous, args));
  }
}
