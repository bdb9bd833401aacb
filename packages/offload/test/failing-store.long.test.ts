// Each call of a store may be the one from which on it fails.

import { it } from 'vitest';
import { expectWholeGenerations } from './support/failing-stores.js';

it('a store that fails for good at each call in turn: no error is unhandled, generations are whole', () =>
  expectWholeGenerations(1));
