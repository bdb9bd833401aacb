export { type AfterForward, type BeforeForward, isModule, joinPath, Module } from './module.js';
export { type Residency, type UnitPhase, UnitScheduler } from './unit-scheduler.js';
