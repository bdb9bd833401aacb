// The names in the bare model of what an optimizer steps.

import type { Optimizer } from '@shardweave/nn';
import type { Tensor } from '@shardweave/tensor-core';
import { FsdpConfigError } from '../errors.js';
import type { Instance } from '../tree/instance.js';
import { requireNoOwnerBeside } from '../tree/own-parameters.js';

/**
 * The name of each of the optimizer's parameters, in the order of its groups.
 * @throws {FsdpConfigError} for a parameter that is not the module's
 */
export function namesFor<Options extends object>(
  root: Instance,
  optimizer: Optimizer<Options>,
): Map<Tensor, string> {
  requireNoOwnerBeside(root, 'optimizer state');
  const stepped = optimizer.parameters();
  const known = new Map(root.wrapper.namedParameters().map(([name, tensor]) => [tensor, name]));
  const names = new Map(stepped.map((tensor) => [tensor, known.get(tensor) ?? '']));
  const foreign = stepped.find((tensor) => !known.has(tensor));
  if (foreign !== undefined) {
    throw new FsdpConfigError(
      `optimizer state: expected parameters of the wrapped module alone, got ${foreign.name === '' ? `one of shape [${foreign.shape.join(', ')}]` : `'${foreign.name}'`}. Pass the instance around all that the optimizer steps.`,
    );
  }
  return names;
}
