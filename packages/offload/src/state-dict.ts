// Gets and sets parameters and buffers under the names that the bare model has: what is written
// here loads into a bare model and back. Parameters pass between the store and the host, and the
// device takes no part.

import { byteSize, fromF32Array, toF32Array } from '@shardweave/dtypes';
import { type HostTensor, type LazyTensor, StateDictError } from '@shardweave/nn';
import { isConvertible, restShape } from '@shardweave/nn/flat';
import { type DType, elementCountOf, type Tensor } from '@shardweave/tensor-core';
import type { OffloadModel } from './offload-model.js';
import type { OffloadedFlat } from './slices/offloaded-flat.js';

/**
 * All parameters in f32 and all buffers, by path. A shared parameter appears once, under its first
 * path.
 */
export function stateDict(model: OffloadModel): Promise<Map<string, HostTensor<DType>>> {
  return model.whileAtRest('stateDict', () => readState(model));
}

async function readState(model: OffloadModel): Promise<Map<string, HostTensor<DType>>> {
  const owners = ownersIn(model);
  const entries = new Map<string, HostTensor<DType>>();
  for (const [name, tensor] of model.namedParameters()) {
    const flat = ownerOf(tensor, name, owners);
    const data = await flat.readLeaf(tensor);
    entries.set(name, { ...specOf(flat, tensor), data });
  }
  for (const [name, buffer] of model.namedBuffers()) {
    const { dtype, shape } = buffer;
    entries.set(name, { dtype, shape, data: await buffer.toBytes() });
  }
  return entries;
}

/**
 * Like stateDict, but each tensor is read when it is asked for, with the values of that moment,
 * whole or in parts: a model of any size passes through the host one part of a tensor at a time.
 * @throws {OffloadBusyError} from a read while another call, a backward or a step has not ended
 */
export async function lazyStateDict(model: OffloadModel): Promise<Map<string, LazyTensor<DType>>> {
  await model.moveToStore();
  const owners = ownersIn(model);
  const entries = new Map<string, LazyTensor<DType>>();
  const atRest = (read: () => Promise<Uint8Array>) => model.whileAtRest('stateDict', read);
  for (const [name, tensor] of model.namedParameters()) {
    const flat = ownerOf(tensor, name, owners);
    entries.set(name, {
      ...specOf(flat, tensor),
      read: () => atRest(() => flat.readLeaf(tensor)),
      readPart: (part) => atRest(() => flat.readLeaf(tensor, part)),
    });
  }
  for (const [name, buffer] of model.namedBuffers()) {
    const { dtype, shape } = buffer;
    entries.set(name, { dtype, shape, read: () => atRest(() => buffer.toBytes()) });
  }
  return entries;
}

/**
 * Sets parameters and buffers, whose floats may have any dtype, and commits the store. Lazy tensors
 * are read one after another, once all names, shapes and dtypes are found to fit; none comes to the
 * device whole.
 * @param options.strict whether names missing on either side are an error. Default true.
 * @throws {StateDictError} listing missing, unexpected and misshapen names; nothing is loaded. A
 * lazy tensor that gives another number of bytes than its shape has throws too, and leaves the
 * layers before it loaded
 */
export async function loadStateDict(
  model: OffloadModel,
  state: ReadonlyMap<string, HostTensor | LazyTensor>,
  options: { readonly strict?: boolean } = {},
): Promise<void> {
  await model.whileAtRest('loadStateDict', () => writeState(model, state, options.strict ?? true));
  await model.commit();
}

async function writeState(
  model: OffloadModel,
  state: ReadonlyMap<string, HostTensor | LazyTensor>,
  isStrict: boolean,
): Promise<void> {
  const parameters = new Map(model.namedParameters());
  const buffers = new Map(model.namedBuffers());
  const owners = ownersIn(model);
  const specs = [...parameters].map(([name, tensor]) => {
    const flat = owners.get(tensor);
    return [name, flat === undefined ? tensor : specOf(flat, tensor)] as const;
  });
  checkState(state, new Map<string, ValueSpec>([...specs, ...buffers]), isStrict);
  const given = new Map<OffloadedFlat, [string, Tensor][]>();
  for (const [name, tensor] of parameters) {
    if (state.has(name)) {
      const flat = ownerOf(tensor, name, owners);
      given.set(flat, [...(given.get(flat) ?? []), [name, tensor]]);
    }
  }
  for (const [flat, leaves] of given) {
    await flat.writeLeaves(async (write) => {
      for (const [name, tensor] of leaves) {
        const values = await valuesOf(state.get(name)!, name);
        write(tensor, flat.isEncoded ? values.data : bytesIn(values, flat.flat.dtype));
      }
    });
  }
  for (const [name, buffer] of buffers) {
    const entry = state.get(name);
    if (entry !== undefined) {
      writeBuffer(buffer, await valuesOf(entry, name));
    }
  }
}

/** The dtype and shape that a tensor has at rest. */
type ValueSpec = Pick<Tensor, 'dtype' | 'shape'>;

function specOf({ flat: { dtype } }: OffloadedFlat, tensor: Tensor): ValueSpec {
  return { dtype, shape: restShape(tensor) };
}

function ownersIn(model: OffloadModel): Map<Tensor, OffloadedFlat> {
  return new Map(
    model.flats.flatMap((flat) => flat.parameters.map(({ tensor }) => [tensor, flat] as const)),
  );
}

function ownerOf(
  tensor: Tensor,
  name: string,
  owners: ReadonlyMap<Tensor, OffloadedFlat>,
): OffloadedFlat {
  const owner = owners.get(tensor);
  if (owner !== undefined) {
    return owner;
  }
  throw new StateDictError(
    `stateDict: expected parameters that rest in the model's store, got '${name}', which is sharded. Use the state dict of the sharded modules.`,
  );
}

function writeBuffer(buffer: Tensor, { dtype, shape, data }: HostTensor<DType>): void {
  const { device, storage, offset } = buffer;
  if (dtype === buffer.dtype) {
    storage.write(data, offset * byteSize(dtype));
    return;
  }
  device.noGrad(() =>
    device.scope(() => device.copyInto(buffer, device.tensor(data, shape, { dtype }))),
  );
}

/** The bytes of an entry that fits. */
async function valuesOf(entry: HostTensor | LazyTensor, name: string): Promise<HostTensor<DType>> {
  const dtype = entry.dtype as DType;
  const { shape } = entry;
  const data = 'data' in entry ? entry.data : await entry.read();
  const byteLength = elementCountOf(shape) * byteSize(dtype);
  if (data.byteLength === byteLength) {
    return { dtype, shape, data };
  }
  throw new StateDictError(
    `loadStateDict: expected ${byteLength} bytes of '${name}', got ${data.byteLength}. Layers before it are loaded.`,
    { mismatched: [name] },
  );
}

/** Float values converted to `target`, padded with zeros to whole words. */
function bytesIn({ dtype, data }: HostTensor, target: DType): Uint8Array {
  const bytes = dtype === target ? data : fromF32Array(toF32Array(data, dtype as DType), target);
  if (bytes.byteLength % 4 === 0) {
    return bytes;
  }
  const words = new Uint8Array(bytes.byteLength + 2);
  words.set(bytes);
  return words;
}

function checkState(
  state: ReadonlyMap<string, HostTensor | LazyTensor>,
  expected: ReadonlyMap<string, ValueSpec>,
  isStrict: boolean,
): void {
  const missing = isStrict ? [...expected.keys()].filter((name) => !state.has(name)) : [];
  const unexpected = isStrict ? [...state.keys()].filter((name) => !expected.has(name)) : [];
  const mismatched = [...expected].flatMap(([name, tensor]) => {
    const entry = state.get(name);
    return entry === undefined || isFit(entry, tensor) ? [] : [name];
  });
  if (missing.length + unexpected.length + mismatched.length === 0) {
    return;
  }
  const list = (names: readonly string[]) => names.join(', ') || 'none';
  throw new StateDictError(
    `loadStateDict: expected the ${expected.size} entries of this model. Missing: ${list(missing)}. Unexpected: ${list(unexpected)}. Misshapen: ${list(mismatched)}.`,
    { missing, unexpected, mismatched },
  );
}

function isFit(entry: HostTensor | LazyTensor, tensor: ValueSpec): boolean {
  const { dtype, shape } = entry;
  return (
    isConvertible(dtype, tensor.dtype) &&
    shape.join() === tensor.shape.join() &&
    (!('data' in entry) || entry.data.byteLength === elementCountOf(tensor.shape) * byteSize(dtype))
  );
}
