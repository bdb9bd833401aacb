// Consecutive layers that are on the device together.

import { type BatchNorm1d, checkpoint, isBatchNorm, Module, Sequential } from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import type { OffloadedFlat } from './offloaded-flat.js';

export class OffloadSlice {
  /** Its layers one after another, checkpointed if activations are. */
  readonly run: Module;
  readonly flats: readonly OffloadedFlat[];
  /** Those in it, whose running statistics move once a batch. */
  readonly batchNorms: readonly BatchNorm1d[];
  /** Names of its layers in the model, for messages. */
  readonly layerNames: readonly string[];

  constructor(
    device: Device,
    layers: readonly { readonly name: string; readonly module: Module }[],
    options: {
      readonly flats: readonly OffloadedFlat[];
      readonly checkpointActivation: boolean;
      /** Called around each run of its layers, the second one of a checkpoint too. */
      readonly around: (slice: OffloadSlice, run: () => Promise<unknown>) => Promise<unknown>;
    },
  ) {
    const modules = layers.map(({ module }) => module);
    const layered = modules.length === 1 ? modules[0]! : new Sequential(device, modules);
    const body = new SliceBody(layered, (run) => options.around(this, run));
    this.run = options.checkpointActivation ? checkpoint(body) : body;
    this.flats = options.flats;
    this.batchNorms = body.namedModules().flatMap(([, one]) => (isBatchNorm(one) ? [one] : []));
    this.layerNames = layers.map(({ name }) => name);
  }

  /** Bytes on the host while its parameters are on their way to the device. */
  get loadBytes(): number {
    return this.flats.reduce((sum, flat) => sum + flat.loadBytes, 0);
  }
}

class SliceBody extends Module<readonly unknown[], unknown> {
  readonly #layers: Module;
  readonly #around: (run: () => Promise<unknown>) => Promise<unknown>;

  constructor(layers: Module, around: (run: () => Promise<unknown>) => Promise<unknown>) {
    super(layers.device);
    this.#layers = this.child('layers', layers);
    this.#around = around;
  }

  forward(...args: readonly unknown[]): Promise<unknown> {
    return this.#around(() => this.#layers.call(...args));
  }
}
