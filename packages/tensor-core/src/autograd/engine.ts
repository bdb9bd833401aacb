// The autograd engine. It walks the graph from a root in the order of decreasing creation numbers,
// so that a node runs only after all nodes that use its outputs have delivered their gradients. It
// counts beforehand how many gradients each leaf will get, and so can announce when a leaf's
// gradient is final, exactly once per backward.

import { isFloat } from '@shardweave/dtypes';
import type { Device } from '../device.js';
import { DTypeError, GraphError, ShapeError, StateError } from '../errors.js';
import { cast } from '../ops/cast.js';
import { isSameShape, shapeText } from '../ops/checks.js';
import { add } from '../ops/elementwise.js';
import { PriorityQueue } from '../priority-queue.js';
import type { Shape, Tensor } from '../tensor.js';
import { type Edge, type GraphNode, type NodeOutput, releasedError } from './node.js';
import { RunningPass, restoreAfter, settle, tellSinks } from './pass.js';

/** Runs the backward passes of one device. */
export class Engine {
  readonly #device: Device;
  #pass: RunningPass | undefined;
  /**
   * The number of walks under way: one for the backward itself, and one more for each rule that
   * runs a backward of its own, as activation checkpointing does.
   */
  #numWalks = 0;
  /** The nodes whose rules are running, the outermost first. */
  readonly #rules: GraphNode[] = [];

  constructor(device: Device) {
    this.#device = device;
  }

  /** See Autograd.ruleInProgress. */
  get ruleInProgress(): GraphNode | undefined {
    return this.#rules.length === this.#numWalks ? this.#rules.at(-1) : undefined;
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
    checkSeed(root, options.gradient);
    const outer = this.#pass;
    if (this.#numWalks > 0 && this.ruleInProgress === undefined) {
      throw new StateError(
        'backward: expected the backward before it to have ended, got one beside it on the same device. Await each backward.',
      );
    }
    const pass = outer ?? new RunningPass();
    this.#pass = pass;
    this.#numWalks += 1;
    try {
      await this.#device
        .noGrad(() => this.#device.scope(() => this.#walk(root, options, pass)))
        .finally(() => {
          this.#numWalks -= 1;
        });
      if (outer === undefined) {
        await settle(pass, this.#device.autograd);
      }
    } catch (error) {
      if (outer === undefined) {
        tellSinks(pass, error);
        // Hooks that have begun asynchronous work finish it before the caller sees the error.
        for (const promise of pass.promises) {
          await Promise.allSettled([promise]);
        }
        await restoreAfter(pass, error);
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
    const { origin } = root;
    if (origin === undefined) {
      pass.expect(root);
      const seed = this.#seed(root, options.gradient);
      deliver(root, seed, pass);
      seed.storage.release();
      return;
    }
    try {
      countLeaves(origin.node, pass);
      await this.#walkNodes(root, origin, options, pass);
    } catch (error) {
      // The nodes that ran have freed what they saved, so the rest of the graph is of no use.
      if (options.retainGraph !== true) {
        releaseGraph(origin.node);
      }
      throw error;
    }
  }

  /** The gradient that the walk starts from; the caller owns one hold on its storage. */
  #seed(root: Tensor, gradient: Tensor | undefined): Tensor {
    const { shape, dtype } = root;
    const seed =
      gradient === undefined ? this.#device.full(shape, 1, { dtype }) : cast(gradient, dtype);
    seed.storage.retain();
    return seed;
  }

  async #walkNodes(
    root: Tensor,
    { node: rootNode, index }: NodeOutput,
    options: { retainGraph?: boolean | undefined; gradient?: Tensor | undefined },
    pass: RunningPass,
  ): Promise<void> {
    const queue = new PriorityQueue<GraphNode>(({ id }) => id); // the last that was created
    const gradients = new Map<GraphNode, (Tensor | undefined)[]>();
    const rootSlots = slots(rootNode);
    rootSlots[index] = this.#seed(root, options.gradient);
    gradients.set(rootNode, rootSlots);
    queue.push(rootNode);
    try {
      for (let node = queue.pop(); node !== undefined; node = queue.pop()) {
        if (pass.failure !== undefined) {
          throw pass.failure.error;
        }
        for (const hook of node.hooks) {
          await this.#device.autograd.callHook(() => hook(pass));
        }
        const incoming = gradients.get(node)!;
        gradients.delete(node);
        await this.#runNode(node, incoming, pass, queue, gradients);
        if (options.retainGraph !== true) {
          node.release();
        }
      }
    } finally {
      // A walk that succeeds has consumed all gradients; one that failed may leave some.
      for (const slot of gradients.values()) {
        for (const left of slot) {
          left?.storage.release();
        }
      }
    }
  }

  #runRule(node: GraphNode, incoming: readonly (Tensor | undefined)[]) {
    this.#rules.push(node);
    const end = () => void this.#rules.splice(this.#rules.indexOf(node), 1);
    let results: ReturnType<GraphNode['run']> | undefined;
    try {
      results = node.run(incoming);
    } finally {
      if (!(results instanceof Promise)) {
        end();
      }
    }
    return results instanceof Promise ? results.finally(end) : results;
  }

  /**
   * Runs one node in a scope of its own, which frees its temporary tensors. A gradient that it
   * hands on outlives the scope because the slot that receives it retains its storage.
   */
  async #runNode(
    node: GraphNode,
    incoming: readonly (Tensor | undefined)[],
    pass: RunningPass,
    queue: PriorityQueue<GraphNode>,
    gradients: Map<GraphNode, (Tensor | undefined)[]>,
  ): Promise<void> {
    const distribute = (results: readonly (Tensor | undefined)[]) => {
      checkResults(node, results);
      node.edges.forEach((edge, i) => {
        if (edge?.node === undefined) {
          return;
        }
        const gradient = results[i];
        let slot = gradients.get(edge.node);
        if (slot === undefined) {
          slot = slots(edge.node);
          gradients.set(edge.node, slot);
          queue.push(edge.node);
        }
        if (gradient !== undefined) {
          slot[edge.index] = accumulate(slot[edge.index], gradient);
        }
      });
      // The last result over each storage: cat's are all views of one.
      const lasts = new Map(results.map((result, i) => [result?.storage, i]));
      // Leaves come last, because a leaf may adopt a gradient as its own only if no slot has
      // retained it.
      node.edges.forEach((edge, i) => {
        if (edge?.leaf === undefined) {
          return;
        }
        const gradient = results[i];
        if (gradient === undefined) {
          pass.arrived(edge.leaf);
          return;
        }
        const isShared = lasts.get(gradient.storage)! > i;
        deliver(edge.leaf, gradient, pass, { isShared });
      });
      for (const leaf of node.hiddenLeaves) {
        if (leaf.requiresGrad) {
          pass.arrived(leaf);
        }
      }
    };
    try {
      await this.#device.scope(() => {
        if (incoming.every((gradient) => gradient === undefined)) {
          return distribute([]);
        }
        const results = this.#runRule(node, incoming);
        return results instanceof Promise ? results.then(distribute) : distribute(results);
      });
    } finally {
      for (const gradient of incoming) {
        gradient?.storage.release();
      }
    }
  }
}

function checkSeed(root: Tensor, gradient: Tensor | undefined): void {
  if (gradient === undefined) {
    if (root.size === 1) {
      return;
    }
    throw new ShapeError(
      `backward: expected a one-element tensor or an explicit gradient, got shape ${shapeText(root.shape)}. Reduce it with sum or mean, or pass { gradient }.`,
    );
  }
  if (!isSameShape(gradient.shape, root.shape)) {
    throw new ShapeError(
      `backward: expected a gradient of the root's shape ${shapeText(root.shape)}, got ${shapeText(gradient.shape)}.`,
    );
  }
  if (!isFloat(gradient.dtype)) {
    throw new DTypeError(`backward: expected a float gradient, got ${gradient.dtype}.`);
  }
}

/**
 * Throws unless each gradient that a rule returned has the shape of its input. A smaller one would
 * make later kernels read beyond its end.
 */
function checkResults(node: GraphNode, results: readonly (Tensor | undefined)[]): void {
  node.edges.forEach((edge, i) => {
    const gradient = results[i];
    if (edge === undefined || gradient === undefined) {
      return;
    }
    const expected = shapeOf(edge);
    if (isSameShape(gradient.shape, expected)) {
      return;
    }
    throw new GraphError(
      `backward: expected the rule of '${node.name}' to give input ${i} a gradient of shape ${shapeText(expected)}, got ${shapeText(gradient.shape)}.`,
    );
  });
}

function shapeOf(edge: Edge): Shape {
  return edge.node === undefined ? edge.leaf.shape : edge.node.outputShapes[edge.index]!;
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

/** Adds a gradient to `leaf.grad`, or hands it to the leaf's sink where it has one. */
function deliver(
  leaf: Tensor,
  gradient: Tensor,
  pass: RunningPass,
  options: { readonly isShared: boolean } = { isShared: false },
): void {
  if (leaf.gradSink !== undefined) {
    leaf.gradSink.accept(leaf, gradient, pass);
  } else if (leaf.grad !== undefined) {
    leaf.device.addInPlace(leaf.grad, gradient);
  } else {
    leaf.grad = adopt(leaf, gradient, options);
  }
  pass.arrived(leaf);
}

/**
 * Makes a gradient that belongs to the leaf: the tensor itself where nothing else uses its storage,
 * else a copy.
 */
function adopt(leaf: Tensor, gradient: Tensor, options: { readonly isShared: boolean }): Tensor {
  const isOwn =
    !options.isShared && // a later input of the same node gets it too
    !gradient.isKept && // its one hold is somebody's who will use it again
    gradient.storage.holds === 1 &&
    gradient.storage.tag === 'activation' && // 'gradient': another leaf has just adopted it
    gradient.dtype === leaf.dtype &&
    gradient.size === gradient.storage.elementCount;
  const own = isOwn ? gradient : cast(gradient, leaf.dtype, { copy: true });
  own.keep();
  own.storage.tag = 'gradient';
  return own;
}

/** Releases `root` and all nodes that it depends on, which frees the tensors that they saved. */
function releaseGraph(root: GraphNode): void {
  const seen = new Set<GraphNode>([root]);
  for (const node of seen) {
    node.release();
    for (const edge of node.edges) {
      if (edge?.node !== undefined) {
        seen.add(edge.node);
      }
    }
  }
}

/** Counts the gradients that each leaf reachable from `root` will get. */
function countLeaves(root: GraphNode, pass: RunningPass): void {
  const seen = new Set<GraphNode>([root]);
  const stack = [root];
  while (stack.length > 0) {
    const node = stack.pop()!;
    if (node.isReleased) {
      throw releasedError(node.name);
    }
    for (const leaf of node.hiddenLeaves) {
      if (leaf.requiresGrad) {
        pass.expect(leaf);
      }
    }
    for (const edge of node.edges) {
      if (edge === undefined) {
        continue;
      }
      if (edge.leaf !== undefined) {
        pass.expect(edge.leaf);
      } else if (!seen.has(edge.node)) {
        seen.add(edge.node);
        stack.push(edge.node);
      }
    }
  }
}
