// Consecutive layers that are on the device together.

import { type BatchNorm1d, checkpoint, isBatchNorm, type Module, Sequential } from '@shardweave/nn';
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
    options: { readonly flats: readonly OffloadedFlat[]; readonly checkpointActivation: boolean },
  ) {
    const modules = layers.map(({ module }) => module);
    const body = modules.length === 1 ? modules[0]! : new Sequential(device, modules);
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
