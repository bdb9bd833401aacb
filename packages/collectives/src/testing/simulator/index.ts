export type { Fault, FaultKind } from './faults.js';
export {
  type BarrierStep,
  type CollectiveName,
  type CollectiveStep,
  type MessageStep,
  type Program,
  randomProgram,
  type SplitStep,
  type Step,
} from './random-program.js';
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
