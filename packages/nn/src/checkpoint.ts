// Activation checkpointing (Chen et al., 2016): forward keeps only its inputs, and backward runs it
// again. The paths of parameters do not show the wrapper.

import { add, type Device, type RandomState, type Tensor } from '@shardweave/tensor-core';
import { checkOptions, FLAG, optional, shown } from './check-options.js';
import { ActivationCheckpointError, NnConfigError } from './errors.js';
import { listTensors, mapTensors } from './map-tensors.js';
import { isModule, Module } from './module.js';

/** Options of `checkpoint`. */
export interface CheckpointOptions {
  /**
   * Whether the inputs are kept on the host between forward and backward, so that the segment keeps
   * nothing on the device. Default false.
   */
  readonly offloadToCpu?: boolean;
}

/**
 * Wraps `module` so that its activations are freed after forward and computed again in backward.
 * Loss and gradients are bit for bit those without the wrapper, dropout included, because the
 * random state and the modes are restored for the second run. Arguments and results may be tensors
 * or containers of them, which may change after forward; other values pass through. The module's
 * hooks run in the second run too. As without the wrapper, backward refuses parameters and inputs
 * that were changed in place since forward.
 * @throws {NnConfigError} where `module` is not a module
 */
export function checkpoint<Args extends readonly unknown[], Output>(
  module: Module<Args, Output>,
  options: CheckpointOptions = {},
): Checkpoint<Args, Output> {
  return new Checkpoint(module, options);
}

/** The module that `checkpoint` returns. Its forward computes what the module inside computes. */
export class Checkpoint<Args extends readonly unknown[], Output> extends Module<Args, Output> {
  readonly #isOffloading: boolean;

  constructor(module: Module<Args, Output>, options: CheckpointOptions = {}) {
    if (!isModule(module)) {
      throw new NnConfigError(`checkpoint: expected a module, got ${shown(module)}.`);
    }
    checkOptions('checkpoint', options, { offloadToCpu: optional(FLAG) });
    super(module.device);
    this.#isOffloading = options.offloadToCpu ?? false;
    this.child('module', module);
    if (!module.isTraining) {
      this.eval(); // a new module is in training mode
    }
  }

  override childPrefix(): string {
    return '';
  }

  /** The module inside. */
  get module(): Module<Args, Output> {
    return this.children().get('module')!;
  }

  async forward(...given: Args): Promise<Output> {
    const { device, module } = this;
    if (!device.isGradEnabled) {
      return module.call(...given);
    }
    // Whoever calls may go on filling a list or an object that it passed, so backward gets a copy
    // of the containers.
    const args = mapTensors(given, (tensor) => tensor);
    const inputs = listTensors(args);
    const needsGrad = inputs.map((input) => input.requiresGrad);
    const state = device.random.state();
    const setModes = noteModes(module);
    const result = await device.noGrad(() => module.call(...given));
    // Recording turns these outputs into results of this node, so a tensor with another owner is
    // replaced by a tensor of its own on the same storage.
    const output = mapTensors(result, (tensor) =>
      tensor.requiresGrad || inputs.includes(tensor) ? tensor.detach() : tensor,
    );
    const kept = this.#isOffloading ? new Map(inputs.map((x) => [x, startRead(x)])) : undefined;
    device.record({
      name: 'checkpoint',
      inputs,
      outputs: floatsIn(output),
      saved: this.#isOffloading ? [] : inputs,
      expected: tensorsReadBy(module),
      hiddenLeaves: module.parameters().filter((parameter) => parameter.requiresGrad),
      backward: (gradients) =>
        this.#backward({ args, needsGrad, kept, state, setModes, gradients }),
    });
    return output;
  }

  /**
   * Runs the module again and goes backward through that run, inside the outer backward. Returns
   * the inputs' gradients.
   */
  async #backward(run: {
    readonly args: Args;
    readonly needsGrad: readonly boolean[];
    /** The bytes of the inputs, where they were moved to the host. */
    readonly kept: ReadonlyMap<Tensor, Promise<Uint8Array>> | undefined;
    readonly state: RandomState;
    /** Sets the modes that the module and those below it had in forward. */
    readonly setModes: () => void;
    readonly gradients: readonly (Tensor | undefined)[];
  }): Promise<readonly (Tensor | undefined)[]> {
    const { device, module } = this;
    const leaves: InputLeaf[] = [];
    const inputs = new Map<Tensor, Tensor>();
    for (const [input, bytes] of run.kept ?? []) {
      const { shape, dtype } = input;
      inputs.set(input, device.tensor(await bytes, shape, { dtype }));
    }
    const args = mapTensors(run.args, (input) => {
      const tensor = inputs.get(input) ?? input;
      const leaf = new InputLeaf(tensor, run.needsGrad[leaves.length]!);
      leaves.push(leaf);
      return leaf.tensor;
    });
    const after = device.random.state();
    const setModesBack = noteModes(module);
    device.random.restore(run.state);
    run.setModes();
    try {
      const result = await device.autograd.enableGrad(() => module.call(...args));
      await backwardFrom(device, floatsIn(result), run.gradients);
      return leaves.map((leaf) => leaf.take());
    } finally {
      for (const leaf of leaves) {
        leaf.take(); // frees what a failure has left
      }
      setModesBack();
      device.random.restore(after);
    }
  }
}

/**
 * An input of the second run, detached from the outer graph, with the gradient that arrives at it.
 */
class InputLeaf {
  readonly tensor: Tensor;
  #gradient: Tensor | undefined;

  constructor(input: Tensor, needsGrad: boolean) {
    this.tensor = input.detach();
    this.tensor.requiresGrad = needsGrad;
    this.tensor.gradSink = {
      accept: (_, gradient) => this.#accept(gradient),
      final: () => {},
    };
  }

  /** Returns the gradient and gives it to the current scope. */
  take(): Tensor | undefined {
    const gradient = this.#gradient;
    if (gradient === undefined) {
      return undefined;
    }
    this.#gradient = undefined;
    gradient.device.scopes.track(gradient);
    gradient.storage.release();
    return gradient;
  }

  #accept(gradient: Tensor): void {
    const before = this.#gradient;
    const sum = before === undefined ? gradient : add(before, gradient);
    sum.storage.retain();
    before?.storage.release();
    this.#gradient = sum;
  }
}

/**
 * The parameters and buffers that the second run of a module reads. In training it reads no running
 * statistics, which every forward moves.
 */
function tensorsReadBy(module: Module): Tensor[] {
  const evaluated = module.namedModules().filter(([, { isTraining }]) => !isTraining);
  const buffers = evaluated.flatMap(([, inner]) => [...inner.ownBuffers().values()]);
  return [...module.parameters(), ...buffers];
}

/** Queues a read-back, which reads what the tensor holds at this moment. */
function startRead(tensor: Tensor): Promise<Uint8Array> {
  const bytes = tensor.toBytes();
  bytes.catch(() => undefined); // handled by the backward that awaits it
  return bytes;
}

/** Goes backward from several tensors at once, through a node that passes each its gradient. */
async function backwardFrom(
  device: Device,
  outputs: readonly Tensor[],
  gradients: readonly (Tensor | undefined)[],
): Promise<void> {
  const pairs = outputs
    .map((output, i) => ({ output, gradient: gradients[i] }))
    .filter(({ output, gradient }) => output.requiresGrad && gradient !== undefined);
  if (pairs.length === 0) {
    throw new ActivationCheckpointError(
      'checkpoint: expected an output that requires grad, got none. Does the module use its parameters, or an input that requires grad?',
    );
  }
  const root = device.empty([1]);
  device.autograd.enableGrad(() =>
    device.record({
      name: 'checkpointOutputs',
      inputs: pairs.map(({ output }) => output),
      outputs: [root],
      saved: [],
      backward: () => pairs.map(({ gradient }) => gradient),
    }),
  );
  await device.backward(root, { gradient: root });
}

/** The tensors in a value that gradients can flow through. */
function floatsIn(value: unknown): Tensor[] {
  return listTensors(value).filter(({ dtype }) => dtype !== 'i32' && dtype !== 'u32');
}

/** Notes the mode of each module. Returns a function that sets those modes again. */
function noteModes(root: Module): () => void {
  const modes = root.namedModules().map(([, module]) => [module, module.isTraining] as const);
  return () => {
    for (const [module, isTraining] of modes) {
      module.isTraining = isTraining;
    }
  };
}
