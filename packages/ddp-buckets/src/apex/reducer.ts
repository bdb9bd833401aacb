// Averages gradients when it is told to, and never by itself (apex's Reducer). It is for training
// loops that decide themselves when ranks meet.

import { exchangeWords, type ProcessGroup } from '@shardweave/collectives';
import type { ReduceDType } from '@shardweave/dtypes';
import { isModule, type Module } from '@shardweave/nn';
import { HostBuffers } from '@shardweave/nn/flat';
import { type Device, isTensor, Tensor } from '@shardweave/tensor-core';
import { assignBuckets, BUCKET_DTYPES, type BucketLayout, bucketLayout } from '../bucket-layout.js';
import { checkOptions, GROUP } from '../check-options.js';
import { DdpConfigError } from '../errors.js';
import { exchangeCall, requireAgreement } from '../ranks/agreement.js';
import { broadcastTensors } from '../ranks/broadcast-tensors.js';
import { serial } from '../ranks/tell-others.js';

/** A tensor, or a nested iterable of tensors. */
export type TensorTree = Tensor | Iterable<TensorTree>;

/** The group over which gradients are averaged. */
export interface ReducerOptions {
  readonly processGroup: ProcessGroup;
}

/** Averages gradients over ranks when it is called, and not during backward. */
export class Reducer {
  readonly #source: Module | undefined;
  /** The gradients themselves, where the source is not a module. */
  readonly #gradients: readonly Tensor[];
  readonly #group: ProcessGroup;
  readonly #hostBuffers = new HostBuffers();
  #opening: Promise<number> | undefined;
  /** The number of this reducer among the users of the group, which ranks compare. */
  #user = 0;
  #numReductions = 0;
  #identity = '';

  /**
   * @param source a module, whose parameters' gradients are reduced, or the gradients themselves
   * @throws {DdpConfigError} for gradients that are not f32, f16 or bf16, and for sharded
   * parameters
   */
  constructor(source: Module | TensorTree, options: ReducerOptions) {
    checkOptions<ReducerOptions>('reducer', options, { processGroup: GROUP });
    this.#source = isModule(source) ? source : undefined;
    this.#gradients = isModule(source) ? [] : [...tensorsOf(source)];
    this.#group = options.processGroup;
    const parameters = this.#source?.namedParameters() ?? [];
    for (const [path, tensor] of parameters) {
      requireFloat(path, tensor);
      if (tensor.piece === undefined) {
        continue;
      }
      throw new DdpConfigError(
        `reducer: expected parameters with gradients of their own, got '${path}', which is sharded or packed. Give it the bare module.`,
      );
    }
    this.#gradients.forEach((tensor, i) => {
      requireFloat(String(i), tensor);
    });
  }

  /**
   * Checks that a module's parameters have equal shapes on all ranks, and sends rank 0's values to
   * all. Collective, once; the first reduce calls it.
   * @throws {DdpStructureError} on every rank, where they differ
   */
  async initialize(): Promise<void> {
    await this.#opened();
  }

  #opened(): Promise<number> {
    this.#opening ??= this.#group.worldSize === 1 ? this.#open() : this.#openInTurn();
    return this.#opening;
  }

  #openInTurn(): Promise<number> {
    const { starts } = this.#group;
    return starts.enqueue(
      Promise.resolve(),
      () => {
        this.#user = starts.nextUser();
        return this.#open();
      },
      serial(this.#group, 'reducer initialize'),
    );
  }

  /**
   * Replaces all gradients by their means over ranks: one sum for each dtype, divided after it.
   * Collective. A parameter without a gradient counts as zeros where another rank has one, and gets
   * the mean too; where no rank has one, it stays without.
   */
  async reduce(): Promise<void> {
    const maxElements = await this.#opened();
    if (this.#group.worldSize === 1) {
      return;
    }
    await this.#group.starts.enqueue(
      Promise.resolve(),
      () => this.#reduce(maxElements),
      serial(this.#group, 'reducer'),
    );
  }

  async #reduce(maxElements: number): Promise<void> {
    this.#identity = `reducer ${this.#user} reduction ${++this.#numReductions}`;
    const gradients = this.#source === undefined ? this.#gradients : await this.#present();
    const indices = gradients.map((_, i) => i).filter((i) => gradients[i]!.size > 0);
    const rule = {
      sizes: { elements: Number.POSITIVE_INFINITY },
      triggers: new Set<number>(),
      maxElements,
    };
    for (const members of assignBuckets(indices, gradients, rule)) {
      await this.#reduceFlat(gradients, bucketLayout(members, gradients));
    }
  }

  /** The largest flat buffer that all ranks' devices can bind, in elements. */
  async #open(): Promise<number> {
    const parameters = this.#source?.namedParameters() ?? [];
    const all =
      this.#source === undefined ? this.#gradients : parameters.map(([, tensor]) => tensor);
    const limits = all[0]?.device.backend.info.limits;
    const bytes = Math.min(limits?.maxViewBytes ?? 0, limits?.maxBufferBytes ?? 0);
    const own = Math.min(Math.floor(bytes / 4), 2 ** 32 - 1);
    if (this.#group.worldSize === 1) {
      return own;
    }
    const lines = all.map((tensor, i) => {
      return `${parameters[i]?.[0] ?? i} ${tensor.dtype} [${tensor.shape.join(', ')}]`;
    });
    const advice = 'Give it the same module, or as many gradients, on all ranks.';
    await requireAgreement(this.#group, lines, { what: 'gradients', advice });
    const call = exchangeCall('largest bucket');
    const words = await exchangeWords(this.#group, Uint32Array.of(own), call);
    const smallest = words.reduce((a, b) => Math.min(a, b));
    const tensors = parameters.map(([, tensor]) => tensor);
    await broadcastTensors(this.#group, tensors, { root: 0, tag: 'reducer parameters' });
    return smallest;
  }

  /** The gradients that any rank has; where this rank has none, it makes zeros. */
  async #present(): Promise<Tensor[]> {
    const parameters = this.#source!.parameters();
    const present = Uint8Array.from(parameters, ({ grad }) => (grad === undefined ? 0 : 1));
    if (present.length > 0) {
      await this.#group.allReduce(present, present, {
        dtype: 'u8',
        op: 'max',
        tag: 'reducer gradients',
        identity: `${this.#identity} present`,
      });
    }
    return parameters.flatMap((parameter, i) => {
      if (present[i] === 0) {
        return [];
      }
      parameter.grad ??= zerosLike(parameter);
      return [parameter.grad];
    });
  }

  async #reduceFlat(gradients: readonly Tensor[], layout: BucketLayout): Promise<void> {
    const { device } = gradients[layout.members[0]!]!;
    const { dtype, elementCount, members, offsets } = layout;
    const flat = device.storage(elementCount, dtype, 'staging');
    flat.fill();
    device.backend.run('fill', { out: flat.view(), value: 0 });
    members.forEach((index, i) => {
      const x = gradients[index]!.view();
      device.backend.run('cast', { x, out: flat.view(offsets[i], x.size) });
    });
    const bytes = await flat.read(0, flat.byteLength, this.#hostBuffers.take(flat.byteLength));
    await this.#group.allReduce(bytes, bytes, {
      dtype: dtype as ReduceDType,
      op: 'sum',
      tag: `reducer ${dtype}`,
      identity: `${this.#identity} ${dtype}`,
    });
    flat.write(bytes);
    this.#hostBuffers.give(bytes);
    const view = flat.view();
    const scale = 1 / this.#group.worldSize;
    device.backend.run('affine', { x: view, out: view, scale, shift: 0 });
    members.forEach((index, i) => {
      const target = gradients[index]!;
      device.copyInto(target, new Tensor(flat, target.shape, offsets[i]));
    });
    flat.release();
  }
}

function* tensorsOf(tree: TensorTree): Generator<Tensor> {
  if (isTensor(tree)) {
    yield tree;
  } else {
    for (const branch of tree) {
      yield* tensorsOf(branch);
    }
  }
}

function zerosLike(parameter: Tensor): Tensor {
  const device: Device = parameter.device;
  const { dtype, shape } = parameter;
  return device.zeros(shape, { dtype, tag: 'gradient' }).keep();
}

function requireFloat(path: string, tensor: Tensor): void {
  if ((BUCKET_DTYPES as readonly string[]).includes(tensor.dtype)) {
    return;
  }
  throw new DdpConfigError(
    `reducer: expected gradients of ${BUCKET_DTYPES.join(', ')}, got ${tensor.dtype} '${path}'. No device here computes in f64.`,
  );
}
