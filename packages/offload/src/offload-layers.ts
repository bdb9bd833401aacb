// The layers of a model, and the flat parameters that they use.

import { isModule, joinPath, type Module, type Sequential } from '@shardweave/nn';
import {
  encodingOf,
  type FlatLeaf,
  flatHomeOf,
  type HostBuffers,
  type StoredModel,
} from '@shardweave/nn/flat';
import { type Device, isFloat, type Tensor } from '@shardweave/tensor-core';
import { shown } from '@shardweave/tensor-core/options';
import { OffloadConfigError } from './errors.js';
import type { ResolvedOffloadOptions } from './options.js';
import type { Layer } from './slices/offload-slice.js';
import { OffloadedFlat } from './slices/offloaded-flat.js';

/** @throws {OffloadConfigError} for anything but a Sequential with layers or a list of modules */
export function layersOf(model: unknown): readonly Module[] {
  const layers = isModule(model)
    ? 'layers' in model && (model as Sequential).layers()
    : Array.isArray(model) && model;
  if (layers === false || layers.length === 0 || !layers.every(isModule)) {
    throw new OffloadConfigError(
      `offload: expected a Sequential with layers or a list of modules, got ${shown(model)}. A model of another shape goes in as a list of the modules that its forward calls one after another.`,
    );
  }
  return layers;
}

/**
 * Makes one flat parameter for the parameters of each layer, and one for those that the same layers
 * share, and hands them to their layers. Frozen parameters beside trained ones have a flat
 * parameter of their own, without a gradient or state; so have those of each dtype other than f32,
 * and encoded ones.
 * @param named the model's parameters with their paths
 * @throws {OffloadConfigError} for a parameter that cannot be moved to a store
 */
export function makeFlats(
  layers: readonly Layer[],
  named: readonly (readonly [path: string, tensor: Tensor])[],
  options: ResolvedOffloadOptions & {
    readonly device: Device;
    readonly hostBuffers: HostBuffers;
    readonly model: StoredModel;
  },
): OffloadedFlat[] {
  const users = new Map<Tensor, Layer[]>();
  for (const layer of layers) {
    for (const tensor of layer.module.parameters()) {
      users.set(tensor, [...(users.get(tensor) ?? []), layer]);
    }
  }
  const layersOfUse = (tensor: Tensor) =>
    users
      .get(tensor)!
      .map(({ name }) => name)
      .join('+');
  const trained = new Set(
    named.filter(([, tensor]) => tensor.requiresGrad).map(([, tensor]) => layersOfUse(tensor)),
  );
  const groups = new Map<string, { users: readonly Layer[]; parameters: FlatLeaf[] }>();
  for (const [path, tensor] of named) {
    if (isAtRest(tensor)) {
      refuseBudget(path, options.deviceBudgetBytes);
      continue;
    }
    refuseForeign(path, tensor, options.device);
    const layersUsing = layersOfUse(tensor);
    const key = joinPath(layersUsing, kindOf(tensor, trained.has(layersUsing)));
    const group = groups.get(key);
    if (group === undefined) {
      groups.set(key, { users: users.get(tensor)!, parameters: [{ path, tensor }] });
    } else {
      group.parameters.push({ path, tensor });
    }
  }
  return [...groups].map(([key, group]) => {
    const name = joinPath(options.name, key);
    const flat = new OffloadedFlat(name, group.parameters, options);
    for (const layer of group.users) {
      layer.flats.push(flat);
    }
    return flat;
  });
}

/**
 * What a flat parameter's name says of its kind: '' for trained f32 parameters, and for frozen ones
 * where all are frozen.
 */
function kindOf(tensor: Tensor, isBesideTrained: boolean): string {
  const encoding = encodingOf(tensor);
  if (encoding !== undefined) {
    return encoding.decodesOn === 'use' ? 'blocks' : 'encoded';
  }
  const frozen = isBesideTrained && !tensor.requiresGrad ? 'frozen' : '';
  return joinPath(frozen, tensor.dtype === 'f32' ? '' : tensor.dtype);
}

/**
 * Refuses a budget for a model with sharded modules: sharding talks to other ranks as it runs,
 * which a dry run must not do.
 */
function refuseBudget(path: string, deviceBudgetBytes: number | undefined): void {
  if (deviceBudgetBytes === undefined) {
    return;
  }
  throw new OffloadConfigError(
    `offload: expected plain parameters with deviceBudgetBytes, got '${path}', which is sharded. Give numSlices, or the slices as a list.`,
  );
}

/**
 * Whether a wrapper inside, such as sharding with a store of its own, keeps it off the device
 * already.
 */
function isAtRest({ piece }: Tensor): boolean {
  return piece !== undefined && flatHomeOf(piece.flat)?.holdsState === true;
}

/** @throws {OffloadConfigError} for a parameter that cannot be moved to this model's store */
function refuseForeign(path: string, tensor: Tensor, device: Module['device']): void {
  if (tensor.piece !== undefined) {
    throw new OffloadConfigError(
      `offload: expected parameters of no other flat tensor, got '${path}', which is packed, sharded or offloaded already. Sharded modules inside need a store of their own (offloadConfig), and sharding goes inside offload, not around it.`,
    );
  }
  if (tensor.requiresGrad && encodingOf(tensor) !== undefined) {
    throw new OffloadConfigError(
      `offload: expected encoded parameters to be frozen, got requiresGrad of '${path}'. Train something beside it.`,
    );
  }
  const isMaster = tensor.dtype === 'f32' || (isFloat(tensor.dtype) && !tensor.requiresGrad);
  if (!isMaster || tensor.device !== device) {
    throw new OffloadConfigError(
      `offload: expected f32 parameters on the model's device, or frozen ones in 16 bits, got ${tensor.dtype} '${path}'. Masters are f32; computeDType sets what is computed in.`,
    );
  }
}
