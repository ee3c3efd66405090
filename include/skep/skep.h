/**
 * @file skep/skep.h
 * All of Skep's public API: nodes that host experts, clients that call them, tensors, files.
 */
#ifndef SKEP_SKEP_H
#define SKEP_SKEP_H

#include <skep/beam.h>
#include <skep/client.h>
#include <skep/expert.h>
#include <skep/log.h>
#include <skep/moe.h>
#include <skep/node.h>
#include <skep/plugin.h>
#include <skep/safetensors.h>
#include <skep/status.h>
#include <skep/tensor.h>
#include <skep/tracker.h>
#include <skep/watch.h>

#endif
