// Walks the graph from a root by decreasing creation number, so that a node runs when all its
// gradients are in. It knows beforehand how many gradients each leaf will get, and says when a
// leaf's gradient is final: exactly once per backward.

import { GraphError, ShapeError } from '../errors.js';
import { add } from '../ops/elementwise.js';
import { cast } from '../ops/cast.js';
import type { Tensor } from '../tensor.js';
import type { Device } from '../device.js';
import { type GraphNode, releasedError } from './node.js';

/** One backward, inner ones of checkpointed segments included. */
export interface Pass {
  /** Leaves that get a gradient in this backward, known before its first kernel. */
  readonly reached: ReadonlySet<Tensor>;
  /** Runs when all nodes and all promises handed to the engine are done, outermost pass only. */
  onEnd(callback: () => void | Promise<void>): void;
  /** Runs instead when the backward fails, before its error is seen; to restore states. */
  onFailure(callback: () => void): void;
}

/** Takes a leaf's gradients instead of `leaf.grad`: buckets, flat gradients. */
export interface GradSink {
  /** A contribution. Valid until this returns; copy, or retain its storage. */
  accept(leaf: Tensor, gradient: Tensor, pass: Pass): void;
  /** The last contribution of this backward was accepted. A returned promise is awaited at the end. */
  final(leaf: Tensor, pass: Pass): void | Promise<void>;
}

/** Called when a leaf's gradient is final in a backward; a returned promise is awaited at its end. */
export type FinalHook = (leaf: Tensor, pass: Pass) => void | Promise<void>;

class RunningPass implements Pass {
  readonly reached = new Set<Tensor>();
  readonly pending = new Map<Tensor, number>();
  readonly promises: Promise<void>[] = [];
  readonly callbacks: (() => void | Promise<void>)[] = [];
  readonly failureCallbacks: (() => void)[] = [];
  failure: { readonly error: unknown } | undefined;

  onEnd(callback: () => void | Promise<void>): void {
    this.callbacks.push(callback);
  }

  onFailure(callback: () => void): void {
    this.failureCallbacks.push(callback);
  }

  /** Keeps a promise without leaving its rejection unobserved meanwhile. */
  hold(promise: Promise<void>): void {
    this.promises.push(promise);
    promise.catch((error: unknown) => {
      this.failure ??= { error };
    });
  }

  expect(leaf: Tensor): void {
    this.reached.add(leaf);
    this.pending.set(leaf, (this.pending.get(leaf) ?? 0) + 1);
  }

  /** One expected gradient of `leaf` has come. */
  arrived(leaf: Tensor): void {
    const left = this.pending.get(leaf)! - 1;
    this.pending.set(leaf, left);
    if (left > 0) return;
    for (const result of [leaf.gradSink?.final(leaf, this), leaf.device.notifyFinal(leaf, this)]) {
      if (result !== undefined) this.hold(result);
    }
  }
}

/** The backward of one device. */
export class Engine {
  readonly #device: Device;
  #pass: RunningPass | undefined;

  constructor(device: Device) {
    this.#device = device;
  }

  /** Whether a backward is running. */
  get isRunning(): boolean {
    return this.#pass !== undefined;
  }

  async backward(
    root: Tensor,
    options: { gradient?: Tensor | undefined; retainGraph?: boolean | undefined },
  ): Promise<void> {
    if (!root.requiresGrad) {
      throw new GraphError(
        'backward: expected a tensor that requires grad, got one outside any graph. Was it made under noGrad, or from inputs that do not require grad?',
      );
    }
    if (options.gradient === undefined && root.size !== 1) {
      throw new ShapeError(
        `backward: expected a one-element tensor or an explicit gradient, got shape [${root.shape.join(', ')}].`,
      );
    }
    const outer = this.#pass;
    const pass = outer ?? new RunningPass();
    this.#pass = pass;
    try {
      await this.#device.noGrad(() => this.#device.scope(() => this.#walk(root, options, pass)));
      if (outer === undefined) await settle(pass);
    } catch (error) {
      if (outer === undefined) {
        // What was started still ends before the error is seen.
        await Promise.allSettled(pass.promises);
        for (const callback of pass.failureCallbacks) callback();
      }
      throw error;
    } finally {
      this.#pass = outer;
    }
  }

  async #walk(
    root: Tensor,
    options: { gradient?: Tensor | undefined; retainGraph?: boolean | undefined },
    pass: RunningPass,
  ): Promise<void> {
    const seed = options.gradient ?? this.#device.full(root.shape, 1, { dtype: root.dtype });
    if (root.node === undefined) {
      pass.expect(root);
      seed.storage.retain();
      deliver(root, seed, pass);
      seed.storage.release();
      return;
    }
    countLeaves(root.node, pass);
    const queue = new NodeQueue();
    const gradients = new Map<GraphNode, (Tensor | undefined)[]>();
    gradients.set(root.node, slots(root.node));
    gradients.get(root.node)![root.outputIndex] = seed;
    seed.storage.retain();
    queue.push(root.node);
    try {
      for (let node = queue.pop(); node !== undefined; node = queue.pop()) {
        if (pass.failure !== undefined) throw pass.failure.error;
        for (const hook of node.hooks) await hook(pass);
        const incoming = gradients.get(node)!;
        gradients.delete(node);
        await this.#runNode(node, incoming, pass, queue, gradients);
        if (options.retainGraph !== true) node.release();
      }
    } finally {
      // Only after a failure is anything left.
      for (const slot of gradients.values()) for (const left of slot) left?.storage.release();
    }
  }

  /** One node in a scope of its own; what it hands on is retained by the slot it goes to. */
  async #runNode(
    node: GraphNode,
    incoming: readonly (Tensor | undefined)[],
    pass: RunningPass,
    queue: NodeQueue,
    gradients: Map<GraphNode, (Tensor | undefined)[]>,
  ): Promise<void> {
    const distribute = (results: readonly (Tensor | undefined)[]) => {
      node.edges.forEach((edge, i) => {
        if (edge?.node === undefined) return;
        const gradient = results[i];
        let slot = gradients.get(edge.node);
        if (slot === undefined) {
          slot = slots(edge.node);
          gradients.set(edge.node, slot);
          queue.push(edge.node);
        }
        if (gradient !== undefined) slot[edge.index] = accumulate(slot[edge.index], gradient);
      });
      // Leaves last: one may adopt a gradient that no slot took.
      node.edges.forEach((edge, i) => {
        if (edge?.leaf === undefined) return;
        const gradient = results[i];
        if (gradient !== undefined) deliver(edge.leaf, gradient, pass);
        else pass.arrived(edge.leaf);
      });
      for (const leaf of node.hiddenLeaves) if (leaf.requiresGrad) pass.arrived(leaf);
    };
    try {
      await this.#device.scope(() => {
        if (incoming.every((gradient) => gradient === undefined)) return distribute([]);
        const results = node.run(incoming);
        return results instanceof Promise ? results.then(distribute) : distribute(results);
      });
    } finally {
      for (const gradient of incoming) gradient?.storage.release();
    }
  }
}

async function settle(pass: RunningPass): Promise<void> {
  // A promise or callback may add further ones.
  for (let i = 0; i < pass.promises.length; i++) await pass.promises[i];
  for (let i = 0; i < pass.callbacks.length; i++) await pass.callbacks[i]!();
}

function slots(node: GraphNode): (Tensor | undefined)[] {
  return node.outputShapes.map(() => undefined);
}

function accumulate(sum: Tensor | undefined, gradient: Tensor): Tensor {
  if (sum === undefined) {
    gradient.storage.retain();
    return gradient;
  }
  const total = add(sum, gradient);
  total.storage.retain();
  sum.storage.release();
  return total;
}

/** Adds to the leaf's gradient, or hands it to the leaf's sink. */
function deliver(leaf: Tensor, gradient: Tensor, pass: RunningPass): void {
  if (leaf.gradSink !== undefined) leaf.gradSink.accept(leaf, gradient, pass);
  else if (leaf.grad !== undefined) leaf.device.addInPlace(leaf.grad, gradient);
  else leaf.grad = adopt(leaf, gradient);
  pass.arrived(leaf);
}

/** A gradient of the leaf's own: the tensor itself where nobody else has its bytes, else a copy. */
function adopt(leaf: Tensor, gradient: Tensor): Tensor {
  const isOwn =
    gradient.storage.holds === 1 &&
    gradient.storage.tag === 'activation' && // 'gradient': another leaf has just adopted it
    gradient.dtype === leaf.dtype &&
    gradient.size === gradient.storage.elementCount;
  const own = isOwn ? gradient : cast(gradient, leaf.dtype, { copy: true });
  own.keep();
  own.storage.tag = 'gradient';
  return own;
}

/** Counts the gradients that each leaf reachable from `root` will get. */
function countLeaves(root: GraphNode, pass: RunningPass): void {
  const seen = new Set<GraphNode>([root]);
  const stack = [root];
  while (stack.length > 0) {
    const node = stack.pop()!;
    if (node.isReleased) throw releasedError(node.name);
    for (const leaf of node.hiddenLeaves) if (leaf.requiresGrad) pass.expect(leaf);
    for (const edge of node.edges) {
      if (edge === undefined) continue;
      if (edge.leaf !== undefined) pass.expect(edge.leaf);
      else if (!seen.has(edge.node)) {
        seen.add(edge.node);
        stack.push(edge.node);
      }
    }
  }
}

/** A binary heap of nodes, largest id first. */
class NodeQueue {
  readonly #heap: GraphNode[] = [];

  push(node: GraphNode): void {
    const heap = this.#heap;
    heap.push(node);
    let i = heap.length - 1;
    while (i > 0) {
      const parent = (i - 1) >> 1;
      if (heap[parent]!.id >= heap[i]!.id) break;
      [heap[parent], heap[i]] = [heap[i]!, heap[parent]!];
      i = parent;
    }
  }

  pop(): GraphNode | undefined {
    const heap = this.#heap;
    const top = heap[0];
    const last = heap.pop();
    if (last !== undefined && heap.length > 0) {
      heap[0] = last;
      let i = 0;
      for (;;) {
        const left = 2 * i + 1;
        const right = left + 1;
        let largest = i;
        if (left < heap.length && heap[left]!.id > heap[largest]!.id) largest = left;
        if (right < heap.length && heap[right]!.id > heap[largest]!.id) largest = right;
        if (largest === i) break;
        [heap[largest], heap[i]] = [heap[i]!, heap[largest]!];
        i = largest;
      }
    }
    return top;
  }
}
