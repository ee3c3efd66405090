/*
 * Expert class "torchscript": serves and trains what torch.jit.save() wrote.
 *
 *     skep node --plugin torchscript.so --expert-cls torchscript:model.pt --expert-uids own.0
 *
 * forward() takes tensors by position and returns a tensor or a tuple of tensors. Each input is
 * float32 of shape [batch, hidden_dim], unless the file has the extra file "skep.inputs", with one
 * entry for each input: `F32[-1,64],I64[-1]`; -1 is the batch in front, and any size elsewhere.
 *
 * The class owns its parameters, as they come with values of their own. Optimizer, learning rate,
 * decay, clipping and schedule are those of the node's options, by PyTorch's own optimizers.
 * Exceptions end in the functions that the library calls.
 */
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <torch/script.h>
#include <torch/torch.h>

#include <skep/plugin.h>

namespace
{

const int64_t ROWS = 3;      // of the pass that finds out the outputs' shapes
const int64_t OPEN_SIZE = 5; // where a dimension may have any size
const size_t MAX_STATE = 1 << 16;
const double MAX_STEPS = 9007199254740992.0; // 2^53: whole numbers up to it are exact

struct spec {
    at::ScalarType type;
    std::vector<int64_t> shape; // -1: any
};

struct model {
    torch::jit::Module module;
    std::vector<std::string> names;
    std::vector<spec> inputs, outputs;
    std::vector<std::string> parameter_names;
    std::vector<at::Tensor> parameters;
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    bool is_adam = false;
    // Of the options.
    double learning_rate = 0, clip = 0;
    std::string schedule;
    uint64_t warmup = 0, total = 0, steps = 0;
    // What was saved last.
    std::vector<std::string> saved_names;
    std::vector<at::Tensor> saved_tensors;
    std::vector<DLTensor> saved_views;
    std::vector<std::vector<int64_t>> saved_shapes;
    std::vector<skep_named_tensor> saved;
};

struct type_row {
    const char *name;
    at::ScalarType type;
    uint8_t code, bits;
};
const type_row types[] = {
    {"F64", at::kDouble, kDLFloat, 64}, {"F32", at::kFloat, kDLFloat, 32},
    {"F16", at::kHalf, kDLFloat, 16},   {"BF16", at::kBFloat16, kDLBfloat, 16},
    {"I64", at::kLong, kDLInt, 64},     {"I32", at::kInt, kDLInt, 32},
    {"I16", at::kShort, kDLInt, 16},    {"I8", at::kChar, kDLInt, 8},
    {"U8", at::kByte, kDLUInt, 8},      {"BOOL", at::kBool, SKEP_DL_BOOL, 8},
};

const type_row &row_of(at::ScalarType type)
{
    for (const type_row &row : types)
        if (row.type == type)
            return row;
    throw std::runtime_error(std::string("tensors of ") + at::toString(type) + " cannot travel");
}

at::ScalarType type_of(const DLTensor &t)
{
    for (const type_row &row : types)
        if (row.code == t.dtype.code && row.bits == t.dtype.bits)
            return row.type;
    throw std::runtime_error("a tensor of an unknown type");
}

skep_status fail(struct skep_error *err, skep_status status, const char *what)
{
    // TorchScript's last line says what went wrong, behind a stack; others say it first.
    static const char interpreter[] = "The following operation failed in the TorchScript";
    std::string text = what;
    err->status = status;
    if (text.rfind(interpreter, 0) == 0) {
        text.erase(text.find_last_not_of('\n') + 1);
        text.erase(0, text.rfind('\n') + 1);
    }
    std::snprintf(err->message, sizeof(err->message), "%s",
                  text.substr(0, text.find('\n')).c_str());
    return status;
}

// Runs a function whose exceptions become errors.
template <typename F> skep_status guarded(struct skep_error *err, F function)
{
    try {
        return function();
    } catch (const std::exception &e) {
        return fail(err, SKEP_INTERNAL, e.what());
    } catch (...) {
        return fail(err, SKEP_INTERNAL, "an unknown exception");
    }
}

// "F32[-1,64],I64[-1]"
std::vector<spec> read_specs(const std::string &text)
{
    std::vector<spec> out;
    size_t at = 0;

    while (at < text.size()) {
        size_t open = text.find('[', at), close = text.find(']', at);
        if (open == std::string::npos || close == std::string::npos || close < open)
            throw std::runtime_error("skep.inputs: \"" + text + "\", expected F32[-1,64],...");
        std::string name = text.substr(at, open - at);
        spec s;
        bool found = false;
        for (const type_row &row : types)
            if (name == row.name) {
                s.type = row.type;
                found = true;
            }
        if (!found)
            throw std::runtime_error("skep.inputs: unknown type \"" + name + "\"");
        std::stringstream sizes(text.substr(open + 1, close - open - 1));
        for (std::string number; std::getline(sizes, number, ',');) {
            char *end;
            long long size = std::strtoll(number.c_str(), &end, 10);
            if (end == number.c_str() || *end != '\0' || size < -1 || size == 0)
                throw std::runtime_error("skep.inputs: size \"" + number +
                                         "\", expected -1 or a number above 0");
            s.shape.push_back(size);
        }
        if (s.shape.empty() || s.shape.size() > SKEP_TENSOR_MAX_DIMS || s.shape[0] != -1)
            throw std::runtime_error("skep.inputs: \"" + text + "\": a shape begins with -1");
        out.push_back(s);
        at = close + 1;
        if (at < text.size() && text[at++] != ',')
            throw std::runtime_error("skep.inputs: \"" + text + "\", expected a comma after ]");
    }
    return out;
}

std::vector<at::Tensor> run(model &m, const std::vector<at::Tensor> &inputs)
{
    std::vector<c10::IValue> stack(inputs.begin(), inputs.end());
    c10::IValue result = m.module.forward(stack);
    std::vector<at::Tensor> out;

    if (result.isTensor()) {
        out.push_back(result.toTensor());
    } else if (result.isTuple()) {
        for (const c10::IValue &value : result.toTupleRef().elements())
            out.push_back(value.toTensor());
    } else {
        throw std::runtime_error("forward returned " + result.tagKind() +
                                 ", expected a tensor or a tuple of tensors");
    }
    return out;
}

void find_outputs(model &m)
{
    torch::NoGradGuard no_grad;
    std::vector<at::Tensor> zeros;
    bool was_training = m.module.is_training();

    for (const spec &s : m.inputs) {
        std::vector<int64_t> shape = s.shape;
        shape[0] = ROWS;
        for (int64_t &n : shape)
            n = n < 0 ? OPEN_SIZE : n;
        zeros.push_back(at::zeros(shape, at::TensorOptions().dtype(s.type)));
    }
    m.module.eval();
    std::vector<at::Tensor> outputs = run(m, zeros);
    m.module.train(was_training);
    for (const at::Tensor &y : outputs) {
        spec s{y.scalar_type(), y.sizes().vec()};
        (void)row_of(s.type);
        if (s.shape.empty() || s.shape[0] != ROWS)
            throw std::runtime_error("an output has not the batch as dimension 0");
        s.shape[0] = -1;
        for (size_t d = 1; d < s.shape.size(); d++)
            if (s.shape[d] == OPEN_SIZE && d < m.inputs[0].shape.size() && m.inputs[0].shape[d] < 0)
                s.shape[d] = -1;
        m.outputs.push_back(s);
    }
}

void make_optimizer(model &m, const struct skep_expert_options &o)
{
    const std::string name = o.optimizer != NULL ? o.optimizer : "none";

    m.learning_rate = o.learning_rate;
    m.clip = o.clip_grad_norm;
    m.schedule = o.schedule != NULL ? o.schedule : "none";
    m.warmup = o.warmup_steps;
    m.total = o.training_steps;
    if (m.parameters.empty() || name == "none")
        return;
    if (name == "adam") {
        auto options = torch::optim::AdamOptions(o.learning_rate);
        options.betas({o.beta1, o.beta2}).eps(o.eps);
        options.weight_decay(o.weight_decay < 0 ? 0.0 : o.weight_decay);
        m.optimizer = std::make_unique<torch::optim::Adam>(m.parameters, options);
        m.is_adam = true;
    } else if (name == "adamw") {
        auto options = torch::optim::AdamWOptions(o.learning_rate);
        options.betas({o.beta1, o.beta2}).eps(o.eps);
        options.weight_decay(o.weight_decay < 0 ? 0.01 : o.weight_decay);
        m.optimizer = std::make_unique<torch::optim::AdamW>(m.parameters, options);
    } else if (name == "sgd") {
        auto options = torch::optim::SGDOptions(o.learning_rate);
        options.momentum(o.momentum);
        options.weight_decay(o.weight_decay < 0 ? 0.0 : o.weight_decay);
        m.optimizer = std::make_unique<torch::optim::SGD>(m.parameters, options);
    } else {
        throw std::runtime_error("optimizer \"" + name + "\", expected adam, adamw, sgd or none");
    }
}

// The part of the learning rate at a step, as skep/expert.h says of schedules.
double factor(const model &m)
{
    double step = (double)m.steps, warmup = (double)m.warmup, total = (double)m.total;
    bool is_linear = m.schedule.rfind("linear", 0) == 0;

    if (m.schedule == "none")
        return 1.0;
    if (step < warmup)
        return step / std::fmax(1.0, warmup);
    return is_linear ? std::fmax(0.0, (total - step) / std::fmax(1.0, total - warmup)) : 1.0;
}

template <typename Options> void set_rate(model &m, double rate)
{
    for (torch::optim::OptimizerParamGroup &group : m.optimizer->param_groups())
        static_cast<Options &>(group.options()).lr(rate);
}

void take_step(model &m)
{
    double rate = m.learning_rate * factor(m);

    if (dynamic_cast<torch::optim::Adam *>(m.optimizer.get()) != nullptr)
        set_rate<torch::optim::AdamOptions>(m, rate);
    else if (dynamic_cast<torch::optim::AdamW *>(m.optimizer.get()) != nullptr)
        set_rate<torch::optim::AdamWOptions>(m, rate);
    else
        set_rate<torch::optim::SGDOptions>(m, rate);
    m.optimizer->step();
}

// ---- what the library calls

skep_status create(const struct skep_expert_options *options, void **state, struct skep_error *err)
{
    return guarded(err, [&]() -> skep_status {
        if (options->argument == NULL || options->argument[0] == '\0')
            return fail(err, SKEP_INVALID_ARGUMENT, "no file, expected torchscript:model.pt");
        auto m = std::make_unique<model>();
        torch::jit::ExtraFilesMap extra{{"skep.inputs", ""}};
        m->module = torch::jit::load(options->argument, at::kCPU, extra);
        const auto &arguments = m->module.get_method("forward").function().getSchema().arguments();
        for (size_t i = 1; i < arguments.size(); i++) // 0 is self
            m->names.push_back(arguments[i].name());
        m->inputs = read_specs(extra["skep.inputs"]);
        if (m->inputs.empty())
            m->inputs.assign(m->names.size(), spec{at::kFloat, {-1, options->hidden_dim}});
        if (m->inputs.size() != m->names.size() || m->inputs.empty() ||
            m->inputs.size() > SKEP_EXPERT_MAX_TENSORS)
            throw std::runtime_error("forward takes " + std::to_string(m->names.size()) +
                                     " inputs, skep.inputs describes " +
                                     std::to_string(m->inputs.size()) + ", expected 1 to " +
                                     std::to_string(SKEP_EXPERT_MAX_TENSORS));
        for (const auto &p : m->module.named_parameters())
            if (p.value.requires_grad()) {
                m->parameter_names.push_back(p.name);
                m->parameters.push_back(p.value);
            }
        find_outputs(*m);
        if (m->outputs.size() > SKEP_EXPERT_MAX_TENSORS)
            throw std::runtime_error("forward returns too many tensors");
        make_optimizer(*m, *options);
        *state = m.release();
        return SKEP_OK;
    });
}

void destroy(void *state)
{
    delete static_cast<model *>(state);
}

void describe_all(struct skep_tensor_spec *out, const std::vector<spec> &specs,
                  const std::vector<std::string> &names)
{
    for (size_t i = 0; i < specs.size(); i++) {
        const type_row &row = row_of(specs[i].type);
        std::snprintf(out[i].name, sizeof(out[i].name), "%s", names[i].c_str());
        out[i].dtype = {row.code, row.bits, 1};
        out[i].ndim = (int)specs[i].shape.size();
        std::copy(specs[i].shape.begin(), specs[i].shape.end(), out[i].shape);
    }
}

skep_status describe(const void *state, struct skep_expert_schema *schema, struct skep_error *err)
{
    const model &m = *static_cast<const model *>(state);

    return guarded(err, [&]() -> skep_status {
        std::vector<std::string> outputs;
        for (size_t i = 0; i < m.outputs.size(); i++)
            outputs.push_back(m.outputs.size() > 1 ? "output" + std::to_string(i) : "output");
        schema->input_count = m.inputs.size();
        schema->output_count = m.outputs.size();
        describe_all(schema->inputs, m.inputs, m.names);
        describe_all(schema->outputs, m.outputs, outputs);
        return SKEP_OK;
    });
}

// A tensor over the caller's memory, for the time of the call.
at::Tensor view_of(const DLTensor &t)
{
    return at::from_blob(static_cast<char *>(t.data) + t.byte_offset,
                         at::IntArrayRef(t.shape, (size_t)t.ndim),
                         at::TensorOptions().dtype(type_of(t)));
}

void write(const std::vector<at::Tensor> &values, const DLTensor *targets, size_t count,
           const char *what)
{
    if (values.size() != count)
        throw std::runtime_error(std::to_string(values.size()) + " " + what + "s, expected " +
                                 std::to_string(count));
    for (size_t i = 0; i < count; i++) {
        at::Tensor target = view_of(targets[i]);
        if (values[i].sizes() != target.sizes())
            throw std::runtime_error(std::string(what) + " " + std::to_string(i) +
                                     " has another shape than for a batch of zeros");
        target.copy_(values[i]);
    }
}

skep_status forward(void *state, const float *const *, const DLTensor *inputs, DLTensor *outputs,
                    struct skep_error *err)
{
    model &m = *static_cast<model *>(state);

    return guarded(err, [&]() -> skep_status {
        torch::NoGradGuard no_grad;
        std::vector<at::Tensor> x;
        for (size_t i = 0; i < m.inputs.size(); i++)
            x.push_back(view_of(inputs[i]).clone()); // the model may keep it
        write(run(m, x), outputs, m.outputs.size(), "output");
        return SKEP_OK;
    });
}

void zero_gradients(model &m)
{
    for (at::Tensor &p : m.parameters)
        p.mutable_grad() = at::Tensor();
}

// The norm of all gradients; they are scaled down to the clip.
double clip_gradients(model &m)
{
    double squares = 0;

    for (const at::Tensor &p : m.parameters)
        if (p.grad().defined())
            squares += std::pow(p.grad().norm().item<double>(), 2);
    double norm = std::sqrt(squares);
    if (m.clip > 0 && std::isfinite(norm) && norm > m.clip)
        for (at::Tensor &p : m.parameters)
            if (p.grad().defined())
                p.mutable_grad().mul_(m.clip / (norm + 1e-6));
    return norm;
}

skep_status backward(void *state, const float *const *, const DLTensor *inputs,
                     const DLTensor *grad_outputs, DLTensor *grad_inputs, float *const *,
                     struct skep_error *err)
{
    model &m = *static_cast<model *>(state);

    skep_status rc = guarded(err, [&]() -> skep_status {
        torch::AutoGradMode with_grad(true);
        std::vector<at::Tensor> x, roots, grads, back;
        for (size_t i = 0; i < m.inputs.size(); i++) {
            at::Tensor leaf = view_of(inputs[i]).clone();
            x.push_back(leaf.is_floating_point() ? leaf.requires_grad_(true) : leaf);
        }
        std::vector<at::Tensor> y = run(m, x);
        for (size_t i = 0; i < m.outputs.size() && i < y.size(); i++)
            if (y[i].requires_grad()) {
                roots.push_back(y[i]);
                grads.push_back(view_of(grad_outputs[i]));
            }
        if (!roots.empty())
            torch::autograd::backward(roots, grads);
        for (const at::Tensor &leaf : x)
            back.push_back(leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf));
        torch::NoGradGuard no_grad;
        write(back, grad_inputs, m.inputs.size(), "gradient");
        double norm = clip_gradients(m);
        if (!std::isfinite(norm))
            return fail(err, SKEP_INVALID_ARGUMENT, "gradients: not finite; no step was done");
        if (m.optimizer != nullptr)
            take_step(m);
        m.steps++;
        return SKEP_OK;
    });
    zero_gradients(m);
    return rc;
}

uint64_t parameter_count(const void *state)
{
    uint64_t sum = 0;

    for (const at::Tensor &p : static_cast<const model *>(state)->parameters)
        sum += (uint64_t)p.numel();
    return sum;
}

// ---- state

// All state by name; the tensors share memory with the model's.
std::map<std::string, at::Tensor> state_of(model &m)
{
    std::map<std::string, at::Tensor> out;

    for (const auto &p : m.module.named_parameters())
        out[p.name] = p.value.detach();
    for (const auto &b : m.module.named_buffers())
        out[b.name] = b.value.detach();
    return out;
}

// What the optimizer keeps of each parameter, under PyTorch's names.
void add_optimizer(model &m, std::map<std::string, at::Tensor> &out)
{
    out["optimizer.steps"] = at::scalar_tensor((double)m.steps, at::kDouble);
    if (m.optimizer == nullptr)
        return;
    auto &states = m.optimizer->state();
    for (size_t i = 0; i < m.parameters.size(); i++) {
        auto found = states.find(c10::guts::to_string(m.parameters[i].unsafeGetTensorImpl()));
        if (found == states.end())
            continue;
        const std::string suffix = "." + m.parameter_names[i];
        if (auto *adam = dynamic_cast<torch::optim::AdamParamState *>(found->second.get())) {
            out["optimizer.exp_avg" + suffix] = adam->exp_avg();
            out["optimizer.exp_avg_sq" + suffix] = adam->exp_avg_sq();
        } else if (auto *w = dynamic_cast<torch::optim::AdamWParamState *>(found->second.get())) {
            out["optimizer.exp_avg" + suffix] = w->exp_avg();
            out["optimizer.exp_avg_sq" + suffix] = w->exp_avg_sq();
        } else if (auto *sgd = dynamic_cast<torch::optim::SGDParamState *>(found->second.get())) {
            if (sgd->momentum_buffer().defined())
                out["optimizer.momentum_buffer" + suffix] = sgd->momentum_buffer();
        }
    }
}

skep_status save(void *state, const struct skep_named_tensor **tensors, size_t *count,
                 struct skep_error *err)
{
    model &m = *static_cast<model *>(state);

    return guarded(err, [&]() -> skep_status {
        std::map<std::string, at::Tensor> all = state_of(m);
        add_optimizer(m, all);
        if (all.size() > MAX_STATE)
            throw std::runtime_error("too many tensors to save");
        m.saved_names.clear();
        m.saved_tensors.clear();
        m.saved_shapes.clear();
        for (const auto &entry : all) {
            m.saved_names.push_back(entry.first);
            m.saved_tensors.push_back(entry.second.detach().clone().contiguous());
            m.saved_shapes.push_back(m.saved_tensors.back().sizes().vec());
            m.saved_shapes.back().push_back(0); // so that data() of a scalar's is not NULL
        }
        m.saved_views.resize(all.size());
        m.saved.resize(all.size());
        for (size_t i = 0; i < all.size(); i++) {
            const type_row &row = row_of(m.saved_tensors[i].scalar_type());
            m.saved_views[i] = DLTensor{m.saved_tensors[i].data_ptr(),
                                        {kDLCPU, 0},
                                        (int)m.saved_tensors[i].dim(),
                                        {row.code, row.bits, 1},
                                        m.saved_shapes[i].data(),
                                        NULL,
                                        0};
            m.saved[i] = {m.saved_names[i].c_str(), &m.saved_views[i]};
        }
        *tensors = m.saved.data();
        *count = m.saved.size();
        return SKEP_OK;
    });
}

template <typename State>
std::unique_ptr<State> adam_state(uint64_t steps, const at::Tensor &m, const at::Tensor &v)
{
    auto state = std::make_unique<State>();

    state->step((int64_t)steps);
    state->exp_avg(m.clone());
    state->exp_avg_sq(v.clone());
    return state;
}

void load_optimizer(model &m, std::map<std::string, at::Tensor> &given)
{
    auto &states = m.optimizer->state();

    for (size_t i = 0; i < m.parameters.size(); i++) {
        const std::string suffix = "." + m.parameter_names[i];
        const std::string key = c10::guts::to_string(m.parameters[i].unsafeGetTensorImpl());
        auto avg = given.find("optimizer.exp_avg" + suffix);
        auto square = given.find("optimizer.exp_avg_sq" + suffix);
        auto momentum = given.find("optimizer.momentum_buffer" + suffix);
        if (dynamic_cast<torch::optim::SGD *>(m.optimizer.get()) != nullptr) {
            if (momentum == given.end())
                continue;
            auto state = std::make_unique<torch::optim::SGDParamState>();
            state->momentum_buffer(momentum->second.clone());
            states[key] = std::move(state);
        } else if (avg != given.end() && square != given.end()) {
            if (m.is_adam)
                states[key] =
                    adam_state<torch::optim::AdamParamState>(m.steps, avg->second, square->second);
            else
                states[key] =
                    adam_state<torch::optim::AdamWParamState>(m.steps, avg->second, square->second);
        }
    }
}

// Refuses an optimizer state that does not fit, before load() changes anything: a step with it
// would fail at every later backward.
void check_optimizer(const model &m, const std::map<std::string, at::Tensor> &given)
{
    auto steps = given.find("optimizer.steps");

    if (steps != given.end()) {
        bool is_number = steps->second.numel() == 1;
        double value = is_number ? steps->second.item<double>() : -1;
        if (!(value >= 0 && value <= MAX_STEPS))
            throw std::runtime_error("optimizer.steps is not a number of steps");
    }
    for (size_t i = 0; i < m.parameters.size(); i++)
        for (const char *kind : {"exp_avg.", "exp_avg_sq.", "momentum_buffer."}) {
            auto found = given.find(std::string("optimizer.") + kind + m.parameter_names[i]);
            if (found != given.end() &&
                (found->second.sizes() != m.parameters[i].sizes() ||
                 found->second.scalar_type() != m.parameters[i].scalar_type()))
                throw std::runtime_error("tensor " + found->first +
                                         " has another shape or type than its parameter");
        }
}

skep_status load(void *state, const struct skep_named_tensor *tensors, size_t count,
                 struct skep_error *err)
{
    model &m = *static_cast<model *>(state);

    return guarded(err, [&]() -> skep_status {
        torch::NoGradGuard no_grad;
        std::map<std::string, at::Tensor> given, own = state_of(m);
        for (size_t i = 0; i < count; i++)
            given[tensors[i].name] = view_of(*tensors[i].tensor);
        for (const auto &entry : own) {
            auto found = given.find(entry.first);
            if (found == given.end())
                throw std::runtime_error("has no tensor " + entry.first);
            if (found->second.sizes() != entry.second.sizes() ||
                found->second.scalar_type() != entry.second.scalar_type())
                throw std::runtime_error("tensor " + entry.first +
                                         " has another shape or type than the model's");
        }
        for (const auto &entry : given)
            if (own.find(entry.first) == own.end() && entry.first.rfind("optimizer.", 0) != 0)
                throw std::runtime_error("holds " + entry.first + ", which the model has not");
        check_optimizer(m, given);
        for (auto &entry : own)
            entry.second.copy_(given[entry.first]);
        auto steps = given.find("optimizer.steps");
        m.steps = steps != given.end() ? (uint64_t)steps->second.item<double>() : 0;
        if (m.optimizer != nullptr)
            load_optimizer(m, given);
        return SKEP_OK;
    });
}

skep_expert_class make_class()
{
    skep_expert_class c{};

    c.name = "torchscript";
    c.create = create;
    c.destroy = destroy;
    c.describe = describe;
    c.forward = forward;
    c.backward = backward;
    c.owns_state = true;
    c.parameter_count = parameter_count;
    c.save = save;
    c.load = load;
    return c;
}

const skep_expert_class classes[] = {make_class()};

} // namespace

SKEP_PLUGIN_DEFINE(classes);
