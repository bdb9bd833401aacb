// The parameters of a wrapped module, whose gradients the wrapper takes. Those of packed ones it
// hands on to the sinks that took them before.

import type { Module } from '@shardweave/nn';
import { type PackedGradient, packedGradientOf } from '@shardweave/nn/flat';
import type { Device, GradSink, Tensor } from '@shardweave/tensor-core';
import { BUCKET_DTYPES } from '../bucket-layout.js';
import { DdpConfigError } from '../errors.js';
import type { ResolvedDdpOptions } from '../options.js';
import type { WrapperLanes } from '../ranks/wrapper-lanes.js';

/** One trainable parameter. */
export interface ActiveParameter {
  readonly path: string;
  readonly tensor: Tensor;
}

/** What the parts of a wrapper share. */
export interface WrapperContext {
  readonly device: Device;
  readonly options: ResolvedDdpOptions;
  readonly lanes: WrapperLanes;
  readonly parameters: WrappedParameters;
}

export class WrappedParameters {
  readonly module: Module;
  readonly #options: ResolvedDdpOptions;
  /** The own sinks of packed parameters, which get what is reduced. */
  readonly #packed = new Map<Tensor, PackedGradient>();
  #sink: GradSink | undefined;

  constructor(module: Module, options: ResolvedDdpOptions) {
    this.module = module;
    this.#options = options;
  }

  /**
   * Hands the gradients of all parameters to `sink`, and from now on those of added ones, too.
   * @throws {DdpConfigError} for parameters and triggers that the wrapper can't work with; nothing
   * is handed over then
   */
  takeOver(sink: GradSink): void {
    const named = this.module.namedParameters();
    for (const [path, tensor] of named) {
      this.#requirePlain(path, tensor);
    }
    this.#requireTriggers(named.map(([, tensor]) => tensor));
    this.#sink = sink;
    this.takeAdded();
  }

  /** Takes the gradients of parameters that the module has got since. */
  takeAdded(): void {
    for (const [path, leaf] of this.module.namedParameters()) {
      this.#take(path, leaf);
    }
  }

  #take(path: string, leaf: Tensor): void {
    if (leaf.gradSink === this.#sink) {
      return;
    }
    this.#requirePlain(path, leaf);
    const packed = packedGradientOf(leaf);
    if (packed !== undefined) {
      this.#packed.set(leaf, packed);
    }
    leaf.gradSink = this.#sink;
  }

  /** Gives the gradients back to whoever took them before. */
  giveBack(): void {
    for (const leaf of this.module.parameters()) {
      if (leaf.gradSink === this.#sink) {
        leaf.gradSink = this.#packed.get(leaf);
      }
    }
  }

  /** The parameters that are trained. It also takes those that were added to the module later. */
  trained(): ActiveParameter[] {
    const found: ActiveParameter[] = [];
    for (const [path, tensor] of this.module.namedParameters()) {
      if (!tensor.requiresGrad || tensor.size === 0) {
        continue;
      }
      this.#take(path, tensor);
      found.push({ path, tensor });
    }
    return found;
  }

  /** The own sink of a packed parameter; undefined for another one. */
  packedOf(leaf: Tensor): PackedGradient | undefined {
    return this.#packed.get(leaf);
  }

  /** Whether a parameter has a gradient that was reduced. */
  hasGradient(leaf: Tensor): boolean {
    return this.#packed.get(leaf)?.hasGradient(leaf) ?? leaf.grad !== undefined;
  }

  /** Clears the gradients of packed parameters. */
  clearPacked(leaves: readonly Tensor[]): void {
    const bySink = new Map<PackedGradient, Tensor[]>();
    for (const leaf of leaves) {
      const sink = this.#packed.get(leaf);
      if (sink !== undefined) {
        bySink.set(sink, [...(bySink.get(sink) ?? []), leaf]);
      }
    }
    for (const [sink, own] of bySink) {
      sink.clear(own);
    }
  }

  #requirePlain(path: string, tensor: Tensor): void {
    if (!(BUCKET_DTYPES as readonly string[]).includes(tensor.dtype)) {
      throw new DdpConfigError(
        `ddp: expected parameters of ${BUCKET_DTYPES.join(', ')}, got ${tensor.dtype} '${path}'. No device here computes in f64; keep such values in f32, or as buffers.`,
      );
    }
    const isPacked = packedGradientOf(tensor) !== undefined;
    if (!isPacked && (tensor.piece !== undefined || tensor.gradSink !== undefined)) {
      throw new DdpConfigError(
        `ddp: expected parameters whose gradients nobody else takes, got '${path}', which is sharded or wrapped already. Wrap the bare module or a packed one, once.`,
      );
    }
    if (isPacked && this.#options.isRetaining) {
      throw new DdpConfigError(
        `ddp: expected plain parameters with retainAllreduceBuffers, got '${path}', which is packed. Its gradient lies in its flat and can't be a view of a bucket; drop the option, or don't pack.`,
      );
    }
    if (tensor.device !== this.module.device) {
      throw new DdpConfigError(
        `ddp: expected all parameters on the module's device, got '${path}' on another. A rank has one device.`,
      );
    }
  }

  #requireTriggers(parameters: readonly Tensor[]): void {
    for (const trigger of this.#options.triggers) {
      if (parameters.includes(trigger)) {
        continue;
      }
      throw new DdpConfigError(
        `ddp: expected allreduceTriggerParams of the wrapped module, got '${trigger.name}' [${trigger.shape.join(', ')}]. Take them from module.parameters().`,
      );
    }
  }
}
