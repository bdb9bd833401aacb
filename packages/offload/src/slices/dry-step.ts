// The beginning and the end of a dry step: inputs that are cut off from the caller's graph, and a
// backward from all outputs.

import { listTensors, mapTensors } from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';

/** Inputs whose gradients go nowhere. */
export function dryInputs(args: readonly unknown[]): readonly unknown[] {
  return mapTensors(args, (x) => {
    const input = x.detach();
    input.requiresGrad = x.requiresGrad;
    input.gradSink = { accept: () => {}, final: () => {} };
    return input;
  });
}

/** Runs backward from all outputs at once, so that what was saved is freed as it is used. */
export async function dryBackward(device: Device, output: unknown): Promise<void> {
  const outputs = listTensors(output).filter(({ requiresGrad }) => requiresGrad);
  if (!device.isGradEnabled || outputs.length === 0) {
    return;
  }
  const root = device.empty([1]);
  device.record({
    name: 'offloadOutputs',
    inputs: outputs,
    outputs: [root],
    saved: [],
    backward: () => outputs.map(({ shape, dtype }) => device.empty(shape, { dtype })),
  });
  await device.backward(root);
}
