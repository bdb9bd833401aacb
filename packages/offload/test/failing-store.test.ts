// A store that fails for good at any of its calls rejects what was awaited and nothing else, and
// what it has committed stays whole. The child process ends at an error that nobody handles.

import { it } from 'vitest';
import { expectWholeGenerations } from './support/failing-stores.js';

it('a store that fails for good: no error is unhandled, and its generations are whole', () =>
  expectWholeGenerations(24));
