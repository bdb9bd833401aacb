// A node of the autograd graph stands for one executed op: where its inputs came from, what it
// saved, and its backward rule.

import { GraphError } from '../errors.js';
import type { Activation } from '../kernel-calls/matmul.js';
import type { Storage } from '../memory/storage.js';
import type { Shape, Tensor } from '../tensor.js';
import type { Pass } from './pass.js';

/** One output of a node. */
export interface NodeOutput {
  readonly node: GraphNode;
  readonly index: number;
  readonly leaf?: undefined;
}

/** Where the gradient of one input goes: to an output of an earlier node, or to a leaf. */
export type Edge = NodeOutput | { readonly node?: undefined; readonly leaf: Tensor };

/**
 * The backward rule of an op: it gets the gradients of the op's outputs (undefined for an output
 * that nothing used) and returns those of its inputs, in order. An entry may be undefined where
 * `needs` is false or the gradient is zero. The rule runs with grad mode off and in its own scope.
 */
export type BackwardRule = (
  gradients: readonly (Tensor | undefined)[],
  needs: readonly boolean[],
) => readonly (Tensor | undefined)[] | Promise<readonly (Tensor | undefined)[]>;

/** A function that is called, and awaited, each time before the node's backward rule runs. */
export type GradientHook = (pass: Pass) => void | Promise<void>;

/**
 * Marks a node whose first output is an activation of its input, such as y = gelu(x), so that
 * backward can fuse the two. Where exactly one product uses y, the kernel that computes the
 * gradient of y also multiplies it by gelu'(x). The result is already the gradient of x, so the
 * product returns it as the gradient of `through`, and the activation's rule passes it on as it is.
 */
export interface ActivationNote {
  readonly kind: Activation;
  /** The op's second output: its unchanged input, in the same storage, which it does not retain. */
  readonly through: Tensor;
  /** How many products use y. Beyond one, the activation's own rule multiplies by the slope. */
  numProducts: number;
}

/**
 * What a GraphNode is made of: the op's name, its inputs and outputs, what its rule reads, and the
 * rule itself.
 */
export interface NodeOptions {
  /** The name of the op, for errors and traces. */
  readonly name: string;
  readonly inputs: readonly Tensor[];
  readonly outputs: readonly Tensor[];
  /**
   * The tensors that the rule reads. Their storages are held until the node is released, and
   * backward refuses values that were changed in place since.
   */
  readonly saved: readonly Tensor[];
  /**
   * Further tensors whose values the rule expects to be as they are, and which somebody else holds:
   * the parameters of a module that a checkpoint runs again.
   */
  readonly expected?: readonly Tensor[];
  /** The leaves whose gradients the rule itself produces by an inner backward (checkpointing). */
  readonly hiddenLeaves?: readonly Tensor[];
  /** @internal */
  readonly activation?: ActivationNote;
  readonly backward: BackwardRule;
}

/** Values that must not change in place before backward reads them. */
interface Watched {
  readonly tensor: Tensor;
  /** The storage and offset at the time of the forward: a leaf may point elsewhere meanwhile. */
  readonly storage: Storage;
  readonly offset: number;
  /** How many changes the storage had seen. */
  readonly numChanges: number;
}

/** Nodes are ordered by `id`, which ascends with creation on a device. */
export class GraphNode {
  readonly id: number;
  readonly name: string;
  readonly edges: readonly (Edge | undefined)[];
  readonly outputShapes: readonly Shape[];
  readonly hiddenLeaves: readonly Tensor[];
  readonly hooks: GradientHook[] = [];
  readonly #saved: readonly Storage[];
  readonly #watched: readonly Watched[];
  #rule: BackwardRule | undefined;
  #activation: ActivationNote | undefined;

  constructor(id: number, options: NodeOptions) {
    this.id = id;
    this.name = options.name;
    this.edges = options.inputs.map(edgeOf);
    this.outputShapes = options.outputs.map((output) => output.shape);
    this.hiddenLeaves = options.hiddenLeaves ?? [];
    this.#saved = options.saved.map((tensor) => tensor.storage);
    this.#rule = options.backward;
    this.#activation = options.activation;
    for (const storage of this.#saved) {
      storage.retain();
    }
    const { saved, expected } = options;
    this.#watched = (expected === undefined ? saved : [...saved, ...expected]).map(watch);
    options.outputs.forEach((output, index) => {
      output.origin = { node: this, index };
      output.requiresGrad = true;
    });
  }

  get isReleased(): boolean {
    return this.#rule === undefined;
  }

  /** The note of an activation, undefined once the node is released, as its storage may be gone. */
  get activation(): ActivationNote | undefined {
    return this.#activation;
  }

  /**
   * Runs the rule.
   * @throws {GraphError} when the node was released by an earlier backward, and where values that
   * it saved were changed in place since.
   */
  run(gradients: readonly (Tensor | undefined)[]): ReturnType<BackwardRule> {
    if (this.#rule === undefined) {
      throw releasedError(this.name);
    }
    for (const watched of this.#watched) {
      if (watched.storage.changes.count !== watched.numChanges) {
        requireUnchanged(this.name, watched);
      }
    }
    return this.#rule(
      gradients,
      this.edges.map((edge) => edge !== undefined),
    );
  }

  /** Gives up what the node saved. Running it afterwards is an error; releasing it again is not. */
  release(): void {
    if (this.#rule === undefined) {
      return;
    }
    this.#rule = undefined;
    this.#activation = undefined;
    this.hooks.length = 0;
    for (const { storage } of this.#watched) {
      storage.changes.unwatch();
    }
    for (const storage of this.#saved) {
      storage.release();
    }
  }
}

function watch(tensor: Tensor): Watched {
  const { storage, offset } = tensor;
  return { tensor, storage, offset, numChanges: storage.changes.watch() };
}

function requireUnchanged(op: string, { tensor, storage, offset, numChanges }: Watched): void {
  const by = storage.changes.since(numChanges, { start: offset, length: tensor.size });
  if (by === undefined) {
    return;
  }
  const name = tensor.name === '' ? 'a tensor' : `'${tensor.name}'`;
  throw new GraphError(
    `backward: expected what '${op}' saved to be as its forward saw it, got ${name} ${tensor.dtype} [${tensor.shape.join(', ')}], which ${by} changed in place since. Take the backward before the change, or run the forward again after it.`,
  );
}

export function releasedError(name: string): GraphError {
  return new GraphError(
    `backward: expected the graph of '${name}' to be intact, but an earlier backward (or the end of its scope) freed it. Pass retainGraph: true to the first backward, or run the forward again.`,
  );
}

function edgeOf(input: Tensor): Edge | undefined {
  if (!input.requiresGrad) {
    return undefined;
  }
  return input.origin ?? { leaf: input };
}
