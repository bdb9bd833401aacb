// The weights in a save of any number of ranks, as tensors that are read when they are asked for.

import type { Save } from '@shardweave/checkpoint';
import type { LazyTensor, WeightsDType } from '@shardweave/nn';
import { byteSize, cpuInfo, createDryBackend, Device, type DType } from '@shardweave/tensor-core';
import { UsageError } from '../errors.js';
import type { ModelChoice } from '../rank/strategies/model-choice.js';
import { deferredModel, trainedParameters } from '../rank/strategies/model-parts.js';

/**
 * What the run trained, in the order of its model, because ranks save in an order of their own. A
 * tensor is converted piece by piece, so its f32 values are never whole in memory.
 * @throws {StateDictError} where the save lacks a parameter of the model, or has one of another
 * model
 */
export async function savedState(
  save: Save,
  options: {
    readonly config: ModelChoice;
    readonly dtype: WeightsDType;
    readonly signal?: AbortSignal;
  },
): Promise<Map<string, LazyTensor>> {
  const { config, dtype, signal } = options;
  const parameters = (await parameterShapes(config)).map(([name, shape]): Wanted => {
    return { kind: 'parameter', name, dtype, shape };
  });
  // Our own models have no buffers; those of a module may be of any name.
  const buffers = [...save.tensors.values()].filter(({ kind }) => kind === 'buffer') as Wanted[];
  const specs = [...parameters, ...buffers];
  save.checkFit(specs, { ignores: ({ kind }) => kind === 'state' });
  return new Map(
    specs.map((spec) => {
      const read = async () => {
        signal?.throwIfAborted();
        return readTensor(save, spec);
      };
      return [spec.name, { dtype: spec.dtype, shape: spec.shape, read }];
    }),
  );
}

/** The names and shapes of what a run saves, read off a model without values. */
export async function parameterShapes(config: ModelChoice): Promise<[string, readonly number[]][]> {
  const device = new Device(createDryBackend({ info: cpuInfo({ threads: 1 }) }));
  try {
    const model = await deferredModel(device, config);
    const isWhole = config.head.kind === 'module';
    const saved = new Set(isWhole ? model.parameters() : trainedParameters(model));
    return model
      .namedParameters()
      .flatMap(([name, tensor]) => (saved.has(tensor) ? [[name, tensor.shape]] : []));
  } finally {
    device.dispose();
  }
}

interface Wanted {
  readonly kind: 'parameter' | 'buffer';
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly number[];
}

async function readTensor(save: Save, spec: Wanted): Promise<Uint8Array> {
  const { name, dtype, shape } = spec;
  const elementBytes = byteSize(dtype);
  const size = shape.reduce((product, dim) => product * dim, 1);
  const data = new Uint8Array(size * elementBytes);
  await save.fill([
    {
      ...{ ...spec, start: 0, end: size },
      write: (start, bytes) => {
        if (dtype === 'f16' && hasInfinity(bytes)) {
          throw new UsageError(
            `--dtype f16: '${name}' has numbers beyond 65504, the largest of f16. Take bf16.`,
          );
        }
        data.set(bytes, start * elementBytes);
      },
    },
  ]);
  return data;
}

/** Whether any f16 is infinite or NaN, in which case all bits of its exponent are set. */
function hasInfinity(bytes: Uint8Array): boolean {
  const halves = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let at = 0; at < bytes.byteLength; at += 2) {
    if ((halves.getUint16(at, true) & 0x7c00) === 0x7c00) {
      return true;
    }
  }
  return false;
}
