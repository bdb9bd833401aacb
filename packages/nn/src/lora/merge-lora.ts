// Adds adapters into the weights of the layers that they adapt, which makes the model a plain one.

import {
  add,
  cast,
  type Device,
  type DType,
  isFloat,
  matmul,
  mul,
  type Tensor,
} from '@shardweave/tensor-core';
import {
  checkOptions,
  DEVICE,
  FINITE,
  FLAG,
  type OptionRules,
  optional,
} from '../check-options.js';
import { StateDictError } from '../errors.js';
import { type HostTensor, isDeviceDType, type LazyTensor } from '../host-tensor.js';
import { peftLayers } from './peft-files.js';

/** Options of merging adapters into the weights of their base model. */
export interface MergeOptions {
  /** The device that computes the sums, one weight at a time. */
  readonly device: Device;
  /** The factor of the adapters' product, which is alpha / rank. */
  readonly scale: number;
  /**
   * Whether adapted weights are stored [in, out], as GPT-2's are. It cannot be read off a square
   * weight. Default false.
   */
  readonly fanInFanOut?: boolean;
}

const RULES: OptionRules<MergeOptions> = {
  device: DEVICE,
  scale: FINITE,
  fanInFanOut: optional(FLAG),
};

/**
 * A model's state in which each adapted weight W is W + scale * B A, rounded once to the dtype of
 * W. All other tensors are those of the base. Each sum is computed when its tensor is read, so one
 * weight at a time is in memory.
 * @param base a model's tensors under the Hub's names
 * @param adapters both factors of each adapted layer, `X.lora_A.weight` [rank, in] and
 * `X.lora_B.weight` [out, rank]
 * @throws {StateDictError} for adapters of a layer that the base does not have, for one factor
 * without the other, for shapes that do not fit, and for a weight that is not f32, f16 or bf16
 */
export function mergeAdapters(
  base: ReadonlyMap<string, LazyTensor>,
  adapters: ReadonlyMap<string, HostTensor | LazyTensor>,
  options: MergeOptions,
): Map<string, LazyTensor> {
  checkOptions('mergeAdapters', options, RULES);
  const { fanInFanOut = false } = options;
  const merged = new Map(base);
  for (const path of peftLayers(adapters)) {
    const name = `${path}.weight`;
    const weight = base.get(name);
    if (weight === undefined) {
      throw new StateDictError(
        `mergeAdapters: expected a base model with '${name}', which has adapters, got one without. Is it the model that they were trained on?`,
        { missing: [name] },
      );
    }
    const factors = ['lora_A', 'lora_B'].map((factor) => {
      const factorName = `${path}.${factor}.weight`;
      const found = adapters.get(factorName);
      if (found === undefined) {
        throw new StateDictError(
          `mergeAdapters: expected both factors of '${path}', got none named '${factorName}'. Is the adapters' file whole?`,
          { missing: [factorName] },
        );
      }
      return found;
    });
    checkShapes(name, weight, { factors, fanInFanOut });
    merged.set(name, {
      dtype: weight.dtype,
      shape: weight.shape,
      read: () => mergedBytes({ ...options, weight, factors, fanInFanOut }),
    });
  }
  return merged;
}

interface Factors {
  /** The two factors, A and B. */
  readonly factors: readonly (HostTensor | LazyTensor)[];
  readonly fanInFanOut: boolean;
}

function checkShapes(
  name: string,
  { shape, dtype }: LazyTensor,
  { factors: [a, b], fanInFanOut }: Factors,
): void {
  const [rank, inFeatures] = a!.shape;
  const [outFeatures, columns] = b!.shape;
  const expected = fanInFanOut ? [inFeatures, outFeatures] : [outFeatures, inFeatures];
  const isSame = shape.length === 2 && shape[0] === expected[0] && shape[1] === expected[1];
  if (isSame && rank === columns && isDeviceDType(dtype) && isFloat(dtype)) {
    return;
  }
  throw new StateDictError(
    `mergeAdapters: expected '${name}' [${expected.join(', ')}] in floats for adapters [${a!.shape.join(', ')}] and [${b!.shape.join(', ')}], got ${dtype} [${shape.join(', ')}]. Is it the model that they were trained on?`,
    { mismatched: [name] },
  );
}

async function mergedBytes(
  merge: MergeOptions & Factors & { readonly weight: LazyTensor },
): Promise<Uint8Array> {
  const { device, weight, factors, scale, fanInFanOut } = merge;
  const [w, a, b] = await Promise.all([weight, ...factors].map(bytesOf));
  const merged = device.noGrad(() =>
    device.scope(() => {
      const tensor = (values: HostTensor | LazyTensor, data: Uint8Array): Tensor =>
        cast(device.tensor(data, values.shape, { dtype: values.dtype as DType }), 'f32');
      const [left, right] = [tensor(factors[1]!, b!), tensor(factors[0]!, a!)]; // [out, r], [r, in]
      const product = fanInFanOut
        ? matmul(right, left, { transposeA: true, transposeB: true })
        : matmul(left, right);
      const sum = add(tensor(weight, w!), mul(product, scale));
      return cast(sum, weight.dtype as DType).keep();
    }),
  );
  try {
    return await merged.toBytes();
  } finally {
    merged.dispose();
  }
}

async function bytesOf(values: HostTensor | LazyTensor): Promise<Uint8Array> {
  return 'data' in values ? values.data : values.read();
}
