export * from './elastic-everywhere.js';
export {
  type JoinElasticPageOptions,
  joinElastic,
} from './transports/ws/elastic/join-elastic-page.js';
