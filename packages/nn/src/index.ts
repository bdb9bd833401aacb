export { type AfterForward, type BeforeForward, isModule, joinPath, Module } from './module.js';
