export type { Fault, FaultKind } from './faults.js';
export { type Program, randomProgram, type Step } from './random-program.js';
export { SeededRandom } from './seeded-random.js';
export {
  createSimulationResources,
  type SimulateOptions,
  SimulationError,
  type SimulationReport,
  type SimulationResources,
  simulate,
} from './simulate.js';
export { type SimulateManyOptions, type SimulationFigures, simulateMany } from './simulate-many.js';
