// The priority queue of backward: the node that was created last runs first.

import type { GraphNode } from './node.js';

/** A binary heap of nodes, largest id first. */
export class NodeQueue {
  readonly #heap: GraphNode[] = [];

  push(node: GraphNode): void {
    const heap = this.#heap;
    heap.push(node);
    let i = heap.length - 1;
    while (i > 0) {
      const parent = (i - 1) >> 1;
      if (heap[parent]!.id >= heap[i]!.id) {
        break;
      }
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
        if (left < heap.length && heap[left]!.id > heap[largest]!.id) {
          largest = left;
        }
        if (right < heap.length && heap[right]!.id > heap[largest]!.id) {
          largest = right;
        }
        if (largest === i) {
          break;
        }
        [heap[largest], heap[i]] = [heap[i]!, heap[largest]!];
        i = largest;
      }
    }
    return top;
  }
}
